#include "shard/unit_memory.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "fullshard/state/sharded_tensor.h"

namespace fullshard::shard {
namespace {

constexpr std::int64_t kPage = 4096;

std::int64_t round_to_page(std::int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Copies `range` of a parameter, as it was found, into the unit's memory.
void store(const FlatUnit& unit, std::size_t parameter, layout::Range range) {
  if (range.empty()) return;
  const layout::PlacedParameter& placed = unit.layout.parameters()[parameter];
  const at::Tensor values = state::in_storage_order(unit.parameters[parameter].tensor.detach(),
                                                    unit.cut_dimension(parameter));
  at::from_blob(unit.at(placed.offset + range.begin), {range.size()}, unit.dtype())
      .copy_(values.narrow(0, range.begin, range.size()));
}

void store_own(const FlatUnit& unit) {
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) store(unit, i, unit.own_range(i));
}

void store_whole(const FlatUnit& unit) {
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    store(unit, i, {0, unit.layout.parameters()[i].numel});
  }
}

// Rank 0's values everywhere. A shared unit is written by the first rank of each shard group, which
// has rank 0's values from the replicate group of those first ranks.
void store_rank0s(const comm::Mesh& mesh, const FlatUnit& unit) {
  const bool writes = unit.replicated() ? true : mesh.shard->rank() == 0;
  if (!writes) return;
  store_whole(unit);
  comm::Group& sources = unit.replicated() ? *mesh.all : *mesh.replicate;
  sources.broadcast({unit.full, unit.layout.flat_size(), unit.layout.dtype()}, 0, {unit.name, 0})
      .wait();
}

}  // namespace

UnitMemory::UnitMemory(const comm::Mesh& mesh, std::vector<FlatUnit>& units, bool sync) {
  allocate(mesh, units);
  for (const FlatUnit& unit : units) {
    if (sync) {
      store_rank0s(mesh, unit);
    } else {
      store_own(unit);
    }
  }
}

void UnitMemory::allocate(const comm::Mesh& mesh, std::vector<FlatUnit>& units) {
  std::int64_t shared_bytes = kPage;
  std::int64_t private_bytes = kPage;
  for (const FlatUnit& unit : units) {
    (unit.replicated() ? private_bytes : shared_bytes) += round_to_page(unit.layout.flat_bytes());
  }
  shared_ = mesh.shard->allocate_shared(static_cast<std::size_t>(shared_bytes), "parameters");
  private_ = at::zeros({private_bytes}, at::kByte);
  std::byte* shared_memory = shared_->data();
  auto* private_memory = static_cast<std::byte*>(private_.mutable_data_ptr());
  for (FlatUnit& unit : units) {
    std::byte*& memory = unit.replicated() ? private_memory : shared_memory;
    unit.full = memory;
    memory += round_to_page(unit.layout.flat_bytes());
  }
}

}  // namespace fullshard::shard
