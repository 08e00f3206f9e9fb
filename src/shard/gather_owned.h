#pragma once

#include <ATen/core/Tensor.h>

#include "fullshard/comm/mesh.h"
#include "shard/flat_unit.h"

namespace fullshard::shard {

/// One number for every flat element of a unit, from what each rank has for those that it updates,
/// `own`, one-dimensional. Collective; of a replicated unit just `own`.
at::Tensor gather_owned(const comm::Mesh& mesh, const FlatUnit& unit, const at::Tensor& own,
                        const comm::OpTag& tag);

/// What this rank updates of a unit, in the dtype of its shards; shares the shards' memory.
at::Tensor owned_values(const FlatUnit& unit);

}  // namespace fullshard::shard
