#include "shard/buffer_pool.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace fullshard::shard {

at::Tensor BufferPool::take(std::int64_t bytes) {
  const std::int64_t wanted = std::max<std::int64_t>(bytes, 1);
  const auto fits = [&](const at::Tensor& buffer) { return buffer.numel() == wanted; };
  const auto found = std::find_if(spare_.begin(), spare_.end(), fits);
  if (found == spare_.end()) return at::zeros({wanted}, at::kByte);
  at::Tensor buffer = std::move(*found);
  spare_.erase(found);
  return buffer;
}

}  // namespace fullshard::shard
