#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fullshard/comm/group.h"

namespace fullshard::shard {

/// Collective. Throws base::Error(kMismatch) naming the tensor and the ranks that differ from rank
/// 0 when its bytes are not the same on all ranks.
void require_same_on_all_ranks(comm::Group& group, const at::Tensor& values,
                               const std::string& name);

/// Ranks whose bytes are not rank 0's, from their hashes; the same on every rank. Collective.
std::vector<std::size_t> ranks_unlike_rank0(comm::Group& group, std::string_view bytes,
                                            const comm::OpTag& tag);

/// The same of numbers that all ranks have to pass alike.
std::vector<std::size_t> ranks_unlike_rank0(comm::Group& group, std::span<const double> numbers,
                                            const comm::OpTag& tag);

}  // namespace fullshard::shard
