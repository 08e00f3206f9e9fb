#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "fullshard/comm/mesh.h"
#include "shard/flat_unit.h"

namespace fullshard::shard {

/// Gives this rank what it is to own of one number for each element of a unit when the unit is cut
/// as `to` is instead of as `from`. `parts` is what it owns now, by parameter; those that are
/// undefined stay so, on all ranks alike. Collective.
std::vector<at::Tensor> move_elements(const comm::Mesh& mesh, const FlatUnit& from,
                                      const FlatUnit& to, std::span<const at::Tensor> parts,
                                      const comm::OpTag& tag);

/// Throws base::Error(kMismatch) naming what is on some ranks only. Collective. `what` says whose
/// tensors these are, `names` are those of the parameters they belong to.
void require_same_on_all(comm::Group& all, std::span<const std::vector<at::Tensor>> tensors,
                         const std::vector<std::string>& names, const std::string& what);

}  // namespace fullshard::shard
