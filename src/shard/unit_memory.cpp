#include "shard/unit_memory.h"

#include "shard/private_unit_memory.h"
#include "shard/shared_unit_memory.h"

namespace fullshard::shard {

std::unique_ptr<UnitMemory> UnitMemory::make(const comm::Mesh& mesh, std::vector<FlatUnit>& units,
                                             const UnitMemoryOptions& options) {
  if (mesh.shard->shares_memory()) {
    return std::make_unique<SharedUnitMemory>(mesh, units, options.from_rank0);
  }
  return std::make_unique<PrivateUnitMemory>(mesh, units, options);
}

}  // namespace fullshard::shard
