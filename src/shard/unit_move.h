#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "fullshard/comm/mesh.h"
#include "fullshard/state/sharded_tensor.h"
#include "shard/flat_unit.h"

namespace fullshard::shard {

/// Gives this rank what it is to own of one number for each element of a unit when the unit is cut
/// as `to` is instead of as `from`. `parts` is what it owns now, by parameter; those that are
/// undefined stay so, on all ranks alike. Collective.
std::vector<at::Tensor> move_elements(const comm::Mesh& mesh, const FlatUnit& from,
                                      const FlatUnit& to, std::span<const at::Tensor> parts,
                                      const comm::OpTag& tag);

/// Throws base::Error, on all ranks, naming what there is on some ranks only (kMismatch) or what on
/// any of them has not one number an element (kMisuse). Collective. `what` says whose tensors these
/// are, by shard and kind.
void require_same_on_all(comm::Group& all, std::span<const std::vector<at::Tensor>> tensors,
                         std::span<const state::ShardedTensor> shards, const std::string& what);

}  // namespace fullshard::shard
