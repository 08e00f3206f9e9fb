#include "shard/shared_unit_memory.h"

#include <ATen/ops/zeros.h>

#include "shard/round_up.h"
#include "shard/store_values.h"

namespace fullshard::shard {
namespace {

constexpr std::int64_t kPage = 4096;

}  // namespace

SharedUnitMemory::SharedUnitMemory(const comm::Mesh& mesh, std::vector<FlatUnit>& units,
                                   bool from_rank0)
    : units_(units), earlier_gathers_(units.size(), 0), earlier_bytes_(units.size(), 0) {
  allocate(mesh);
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (from_rank0) {
      store_rank0s(mesh, unit);
    } else if (!units_[unit].has_masters()) {
      store_own(units_[unit]);
    }
  }
}

void SharedUnitMemory::allocate(const comm::Mesh& mesh) {
  std::int64_t shared_bytes = kPage;
  std::int64_t private_bytes = kPage;
  for (const FlatUnit& unit : units_) {
    (unit.replicated() ? private_bytes : shared_bytes) += round_up(unit.layout.flat_bytes(), kPage);
  }
  shared_ = mesh.shard->allocate_shared(static_cast<std::size_t>(shared_bytes), "parameters");
  private_ = at::zeros({private_bytes}, at::kByte);
  std::byte* shared_memory = shared_->data();
  auto* private_memory = static_cast<std::byte*>(private_.mutable_data_ptr());
  for (FlatUnit& unit : units_) {
    std::byte*& memory = unit.replicated() ? private_memory : shared_memory;
    whole_.push_back(memory);
    unit.set_held_memory(memory + unit.held.begin * unit.element_bytes());
    memory += round_up(unit.layout.flat_bytes(), kPage);
  }
}

void SharedUnitMemory::move(const std::vector<at::Tensor>&) {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    FlatUnit& unit = units_[u];
    unit.set_held_memory(whole_[u] + unit.held.begin * unit.element_bytes());
  }
}

// Rank 0's values everywhere. A shared unit is written by the first rank of each shard group, which
// has rank 0's values from the replicate group of those first ranks.
void SharedUnitMemory::store_rank0s(const comm::Mesh& mesh, std::size_t index) const {
  const FlatUnit& unit = units_[index];
  const bool writes = unit.replicated() || mesh.shard->rank() == 0;
  if (!writes) return;
  store_whole(unit, whole_[index]);
  comm::Group& sources = unit.replicated() ? *mesh.all : *mesh.replicate;
  sources
      .broadcast({whole_[index], unit.layout.flat_size(), unit.layout.dtype()}, 0, {unit.name, 0})
      .wait();
}

std::int64_t SharedUnitMemory::gathered_bytes(std::size_t index, std::int64_t gathers) const {
  const FlatUnit& unit = units_[index];
  return earlier_bytes_[index] +
         (gathers - earlier_gathers_[index]) * (unit.layout.flat_bytes() - unit.held_bytes());
}

void SharedUnitMemory::count_gathers(std::span<const std::int64_t> by_unit) {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    earlier_bytes_[u] = gathered_bytes(u, by_unit[u]);
    earlier_gathers_[u] = by_unit[u];
  }
}

}  // namespace fullshard::shard
