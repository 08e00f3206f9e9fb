#include "shard/private_unit_memory.h"

#include <ATen/ops/zeros.h>

#include <cstring>
#include <utility>

#include "shard/stopwatch.h"
#include "shard/store_values.h"

namespace fullshard::shard {
namespace {

constexpr std::int64_t kAlignment = 64;  // bytes

std::int64_t slice_bytes(const FlatUnit& unit) {
  return (unit.own.size() * unit.element_bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

std::byte* memory_of(const at::Tensor& buffer) {
  return static_cast<std::byte*>(buffer.mutable_data_ptr());
}

}  // namespace

PrivateUnitMemory::PrivateUnitMemory(const comm::Mesh& mesh, std::vector<FlatUnit>& units,
                                     const UnitMemoryOptions& options)
    : units_(units), group_(*mesh.shard), dynamic_(options.dynamic), gathered_(units.size()) {
  std::int64_t bytes = kAlignment;
  for (const FlatUnit& unit : units_) bytes += slice_bytes(unit);
  own_ = at::zeros({bytes}, at::kByte);
  std::byte* memory = memory_of(own_);
  for (FlatUnit& unit : units_) {
    unit.own_memory = memory;
    memory += slice_bytes(unit);
    if (options.from_rank0) {
      store_rank0s(*mesh.all, unit);
    } else {
      store_own(unit);
    }
  }
}

void PrivateUnitMemory::store_rank0s(comm::Group& all, const FlatUnit& unit) {
  at::Tensor whole = buffers_.take(unit.layout.flat_bytes());
  if (all.rank() == 0) store_whole(unit, memory_of(whole));
  all.broadcast({memory_of(whole), unit.layout.flat_size(), unit.layout.dtype()}, 0, {unit.name, 0})
      .wait();
  const auto bytes = static_cast<std::size_t>(unit.own.size() * unit.element_bytes());
  std::memcpy(unit.own_memory, memory_of(whole) + unit.own.begin * unit.element_bytes(), bytes);
  buffers_.give_back(std::move(whole));
}

std::byte* PrivateUnitMemory::gather(std::size_t index, std::int64_t version) {
  if (units_[index].replicated()) return units_[index].own_memory;
  if (dynamic_) {
    gather_all(version);
  } else {
    gather_now(index, version);
  }
  return memory_of(gathered_[index].buffer);
}

void PrivateUnitMemory::gather_all(std::int64_t version) {
  if (all_gathered_ == version) return;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (!units_[unit].replicated()) gather_now(unit, version);
  }
  all_gathered_ = version;
}

void PrivateUnitMemory::gather_now(std::size_t index, std::int64_t version) {
  Gathered& gathered = gathered_[index];
  if (gathered.buffer.defined() && gathered.version == version) return;
  const FlatUnit& unit = units_[index];
  const layout::UnitLayout& layout = unit.layout;
  if (!gathered.buffer.defined()) gathered.buffer = buffers_.take(layout.flat_bytes());
  const Stopwatch watch(waited_seconds_);
  gathered.version = 0;
  group_
      .all_gather({unit.own_memory, unit.own.size(), layout.dtype()},
                  {memory_of(gathered.buffer), layout.flat_size(), layout.dtype()},
                  unit.slice_sizes(), {unit.name, version})
      .wait();
  gathered.version = version;
  gathered.received += layout.flat_bytes() - unit.own.size() * unit.element_bytes();
}

void PrivateUnitMemory::release(std::size_t unit) {
  at::Tensor& buffer = gathered_[unit].buffer;
  if (dynamic_ || !buffer.defined()) return;
  buffers_.give_back(std::exchange(buffer, {}));
}

void PrivateUnitMemory::take_part(std::int64_t version) {
  if (dynamic_) gather_all(version);
}

}  // namespace fullshard::shard
