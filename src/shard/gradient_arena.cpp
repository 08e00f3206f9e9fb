#include "shard/gradient_arena.h"

#include <algorithm>

#include "fullshard/base/check.h"

namespace fullshard::shard {

std::int64_t GradientArena::allocate(std::int64_t bytes) {
  const std::int64_t rounded = std::max<std::int64_t>((bytes + 63) / 64 * 64, 64);
  std::int64_t offset = 0;
  for (const auto& [begin, size] : regions_) {
    if (begin - offset >= rounded) break;
    offset = begin + size;
  }
  if (offset + rounded > capacity_) return -1;
  regions_.emplace(offset, rounded);
  used_ += rounded;
  peak_ = std::max(peak_, used_);
  return offset;
}

void GradientArena::free(std::int64_t offset) {
  const auto region = regions_.find(offset);
  FULLSHARD_CHECK(region != regions_.end());
  used_ -= region->second;
  regions_.erase(region);
}

}  // namespace fullshard::shard
