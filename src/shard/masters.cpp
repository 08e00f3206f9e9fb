#include "shard/masters.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <cstdint>

#include "shard/dtype.h"
#include "shard/gather_owned.h"
#include "shard/round_up.h"
#include "shard/store_values.h"

namespace fullshard::shard {
namespace {

constexpr std::int64_t kAlignment = 64;  // bytes

std::int64_t master_bytes(const FlatUnit& unit) {
  return unit.has_masters() ? round_up(unit.own_shard_bytes(), kAlignment) : 0;
}

}  // namespace

Masters::Masters(const comm::Mesh& mesh, std::vector<FlatUnit>& units, bool from_rank0)
    : mesh_(mesh), units_(units), changed_(units.size(), false) {
  place();
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (!units_[u].has_masters()) continue;
    fill(units_[u], from_rank0);
    changed_[u] = !from_rank0;
  }
}

void Masters::place() {
  std::int64_t bytes = 0;
  for (const FlatUnit& unit : units_) bytes += master_bytes(unit);
  memory_ = at::zeros({bytes}, at::kByte);
  auto* memory = static_cast<std::byte*>(memory_.mutable_data_ptr());
  for (FlatUnit& unit : units_) {
    if (!unit.has_masters()) continue;
    unit.shard_memory = memory;
    memory += master_bytes(unit);
  }
}

void Masters::fill(const FlatUnit& unit, bool from_rank0) const {
  if (!from_rank0) return store_own(unit);
  at::Tensor whole = at::zeros({unit.layout.flat_size()}, unit.shard_dtype());
  if (mesh_.all->rank() == 0) store_whole(unit, whole);
  const comm::Buffer buffer{whole.mutable_data_ptr(), whole.numel(),
                            to_dtype(unit.shard_dtype(), unit.name)};
  mesh_.all->broadcast(buffer, 0, {unit.name, 0}).wait();
  owned_values(unit).copy_(whole.narrow(0, unit.own.begin, unit.own.size()));
}

void Masters::publish() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const FlatUnit& unit = units_[u];
    if (!changed_[u] || !unit.has_masters()) continue;
    at::from_blob(unit.held_at(unit.own.begin), {unit.own.size()}, unit.dtype())
        .copy_(owned_values(unit));
    changed_[u] = false;
  }
}

// What gathers take is in place already.
void Masters::move(const std::vector<at::Tensor>& values) {
  place();
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].has_masters()) owned_values(units_[u]).copy_(values[u]);
  }
}

}  // namespace fullshard::shard
