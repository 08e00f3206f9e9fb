#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "fullshard/comm/mesh.h"
#include "shard/flat_unit.h"

namespace fullshard::shard {

/// The memory of all units on one rank: shared with the other ranks of the shard group, or the
/// rank's own for replicated units. Not yet readable by all when the constructor returns;
/// UpdateGate says when.
class UnitMemory {
 public:
  /// Collective. Sets `full` of every unit and fills it from the parameters as they were found:
  /// with `sync` from those of rank 0 of all ranks, otherwise each rank's own range from its own.
  UnitMemory(const comm::Mesh& mesh, std::vector<FlatUnit>& units, bool sync);

 private:
  void allocate(const comm::Mesh& mesh, std::vector<FlatUnit>& units);

  std::unique_ptr<comm::SharedSegment> shared_;
  at::Tensor private_;
};

}  // namespace fullshard::shard
