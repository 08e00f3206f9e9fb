#include "shard/gradient_arena.h"

#include <algorithm>

#include "fullshard/base/check.h"

namespace fullshard::shard {

std::int64_t GradientArena::allocate(std::int64_t bytes) {
  const std::int64_t rounded = std::max<std::int64_t>((bytes + 63) / 64 * 64, 64);
  std::int64_t begin = 0;
  auto at = regions_.begin();
  for (; at != regions_.end() && at->begin - begin < rounded; ++at) begin = at->begin + at->bytes;
  if (at == regions_.end() && begin + rounded > capacity_) return -1;
  regions_.insert(at, {begin, rounded});
  used_ += rounded;
  return begin;
}

void GradientArena::free(std::int64_t offset) {
  const auto region =
      std::lower_bound(regions_.begin(), regions_.end(), offset,
                       [](const Region& r, std::int64_t begin) { return r.begin < begin; });
  FULLSHARD_CHECK(region != regions_.end() && region->begin == offset);
  used_ -= region->bytes;
  regions_.erase(region);
}

}  // namespace fullshard::shard
