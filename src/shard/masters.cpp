#include "shard/masters.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <cstdint>

#include "shard/dtype.h"
#include "shard/round_up.h"
#include "shard/store_values.h"

namespace fullshard::shard {
namespace {

constexpr std::int64_t kAlignment = 64;  // bytes

std::int64_t master_bytes(const FlatUnit& unit) {
  return unit.has_masters() ? round_up(unit.own_shard_bytes(), kAlignment) : 0;
}

comm::Buffer buffer_of(const at::Tensor& values, const FlatUnit& unit) {
  return {values.mutable_data_ptr(), values.numel(), to_dtype(unit.shard_dtype(), unit.name)};
}

std::vector<std::int64_t> sizes_of(std::span<const layout::Range> ranges) {
  std::vector<std::int64_t> sizes;
  for (const layout::Range& range : ranges) sizes.push_back(range.size());
  return sizes;
}

at::Tensor own_of(const FlatUnit& unit) {
  return at::from_blob(unit.shard_memory, {unit.own.size()}, unit.shard_dtype());
}

}  // namespace

Masters::Masters(const comm::Mesh& mesh, std::vector<FlatUnit>& units, bool from_rank0)
    : mesh_(mesh), units_(units), changed_(units.size(), false) {
  std::int64_t bytes = 0;
  for (const FlatUnit& unit : units_) bytes += master_bytes(unit);
  memory_ = at::zeros({bytes}, at::kByte);
  auto* memory = static_cast<std::byte*>(memory_.mutable_data_ptr());
  for (std::size_t u = 0; u < units_.size(); ++u) {
    FlatUnit& unit = units_[u];
    if (!unit.has_masters()) continue;
    unit.shard_memory = memory;
    memory += master_bytes(unit);
    fill(unit, from_rank0);
    changed_[u] = !from_rank0;
  }
}

void Masters::fill(const FlatUnit& unit, bool from_rank0) {
  if (!from_rank0) return store_own(unit);
  at::Tensor whole = at::zeros({unit.layout.flat_size()}, unit.shard_dtype());
  if (mesh_.all->rank() == 0) store_whole(unit, whole);
  mesh_.all->broadcast(buffer_of(whole, unit), 0, {unit.name, 0}).wait();
  own_of(unit).copy_(whole.narrow(0, unit.own.begin, unit.own.size()));
}

void Masters::publish() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const FlatUnit& unit = units_[u];
    if (!changed_[u] || !unit.has_masters()) continue;
    at::from_blob(unit.held_at(unit.own.begin), {unit.own.size()}, unit.dtype())
        .copy_(own_of(unit));
    changed_[u] = false;
  }
}

at::Tensor Masters::gather(std::size_t u, std::int64_t version) const {
  const FlatUnit& unit = units_[u];
  const comm::OpTag tag{unit.name, version};
  if (unit.replicated()) return own_of(unit).clone();
  const comm::Buffer own{unit.shard_memory, unit.own.size(),
                         to_dtype(unit.shard_dtype(), unit.name)};
  at::Tensor held;
  if (unit.divided()) {
    held = at::empty({unit.held.size()}, unit.shard_dtype());
    const std::vector<std::int64_t> counts = sizes_of(unit.pieces_of(mesh_.shard->rank()));
    mesh_.replicate->all_gather(own, buffer_of(held, unit), counts, tag).wait();
  }
  at::Tensor whole = at::empty({unit.layout.flat_size()}, unit.shard_dtype());
  mesh_.shard
      ->all_gather(held.defined() ? buffer_of(held, unit) : own, buffer_of(whole, unit),
                   unit.slice_sizes(), tag)
      .wait();
  return whole;
}

}  // namespace fullshard::shard
