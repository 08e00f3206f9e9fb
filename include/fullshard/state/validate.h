#pragma once

#include <cstdint>
#include <span>

#include "fullshard/state/sharded_tensor.h"

namespace fullshard::state {

/// Elements of the whole tensor: the product of global_shape, 1 for a scalar.
std::int64_t global_numel(const ShardedTensor& tensor);

/// Elements this rank holds.
std::int64_t local_numel(const ShardedTensor& tensor);

/// Throws kInvalidArgument, naming the tensor, unless it has a name, its dimension and its range
/// lie inside the whole, its tensor is defined, one-dimensional and as long as the range, and a
/// replicated one holds all. Local: looks at this rank's part only.
void validate(const ShardedTensor& tensor);

/// validate() for each, and no name twice.
void validate(std::span<const ShardedTensor> tensors);

}  // namespace fullshard::state
