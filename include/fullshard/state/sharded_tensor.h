#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fullshard::state {

/// One rank's part of a parameter (or of something shaped like it): data only, nothing that acts.
struct ShardedTensor {
  std::string name;                        ///< the user's dotted name
  std::vector<std::int64_t> global_shape;  ///< shape of the whole; empty for a scalar
  std::int64_t begin = 0;   ///< first element of this rank, in storage order: see `dimension`
  std::int64_t end = 0;     ///< one past the last; begin == end on a rank that owns none
  at::Tensor tensor;        ///< the end - begin elements, one-dimensional
  bool replicated = false;  ///< every rank holds the whole (NO_SHARD)

  /// The dimension the whole is cut along. Elements are counted row-major after it has been moved
  /// to the front: with 0 in plain row-major order, with 1 column by column.
  std::int64_t dimension = 0;
};

/// The elements of a whole tensor in the storage order of one that is cut along `dimension`:
/// one-dimensional, a view where that can be.
at::Tensor in_storage_order(const at::Tensor& whole, std::int64_t dimension);

/// This rank's part of `whole`, a tensor of global_shape.
at::Tensor part_of(const ShardedTensor& tensor, const at::Tensor& whole);

}  // namespace fullshard::state
