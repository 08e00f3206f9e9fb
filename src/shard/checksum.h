#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "fullshard/comm/group.h"

namespace fullshard::shard {

/// Collective. Throws base::Error(kMismatch) naming the tensor and the ranks that differ from rank
/// 0 when its bytes are not the same on all ranks.
void require_same_on_all_ranks(comm::Group& group, const at::Tensor& values,
                               const std::string& name);

}  // namespace fullshard::shard
