#pragma once

#include <ATen/core/Tensor.h>

#include "fullshard/comm/group.h"
#include "fullshard/shard/model_tree.h"

namespace fullshard::shard {

/// Collective. A contiguous copy of rank 0's values of a dense tensor, for instance a buffer, which
/// has the same shape and dtype on all ranks.
at::Tensor values_of_rank0(comm::Group& group, const NamedTensor& named);

}  // namespace fullshard::shard
