#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "fullshard/comm/mesh.h"
#include "shard/flat_unit.h"

namespace fullshard::shard {

/// What each rank updates where that is not what ranks gather: its parts of units with mixed
/// precision, in the dtype that the parameters were found in. Updated values are to be published,
/// that is, rounded to where gathers take them from, before anybody reads them.
class Masters {
 public:
  /// Collective, after UnitMemory has set `held_memory`. Sets `shard_memory` of units with masters
  /// and fills it: with `from_rank0` by rank 0's values, else by this rank's own, which are then to
  /// be published. `mesh` and `units` must outlive the object.
  Masters(const comm::Mesh& mesh, std::vector<FlatUnit>& units, bool from_rank0);

  /// A shard of the unit is about to be changed.
  void mark_changed(std::size_t unit) { changed_[unit] = true; }

  /// Publishes what was changed.
  void publish();

  /// Units have been cut otherwise, with nothing left to publish: what this rank owns of those that
  /// have masters is `values`, by unit.
  void move(const std::vector<at::Tensor>& values);

  std::int64_t bytes() const { return memory_.numel(); }

 private:
  void place();
  void fill(const FlatUnit& unit, bool from_rank0) const;

  const comm::Mesh& mesh_;
  std::vector<FlatUnit>& units_;
  at::Tensor memory_;
  std::vector<bool> changed_;  // by unit: since it was published last
};

}  // namespace fullshard::shard
