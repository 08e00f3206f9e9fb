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
  std::int64_t begin = 0;                  ///< first element of this rank, in row-major order
  std::int64_t end = 0;     ///< one past the last; begin == end on a rank that owns none
  at::Tensor tensor;        ///< the end - begin elements, one-dimensional
  bool replicated = false;  ///< every rank holds the whole (NO_SHARD)
};

}  // namespace fullshard::state
