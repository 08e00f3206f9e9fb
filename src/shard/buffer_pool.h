#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fullshard::shard {

/// Buffers of bytes that are used again, step after step. Used by the rank's own thread.
class BufferPool {
 public:
  /// A buffer of `bytes` bytes, at least one, with any content; zero when it was never used.
  at::Tensor take(std::int64_t bytes);

  /// Ends the use of a buffer from take().
  void give_back(at::Tensor buffer) { spare_.push_back(std::move(buffer)); }

  /// Buffers of the sizes until now are wanted no more.
  void clear() { spare_.clear(); }

 private:
  std::vector<at::Tensor> spare_;
};

}  // namespace fullshard::shard
