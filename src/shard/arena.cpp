#include "shard/arena.h"

#include <algorithm>
#include <utility>

#include "fullshard/base/check.h"
#include "shard/round_up.h"

namespace fullshard::shard {

std::int64_t Arena::allocate(std::int64_t bytes) {
  const std::int64_t rounded = std::max<std::int64_t>(round_up(bytes, 64), 64);
  std::int64_t begin = 0;
  auto at = regions_.begin();
  for (; at != regions_.end() && at->begin - begin < rounded; ++at) begin = at->end();
  if (at == regions_.end() && begin + rounded > capacity_) return -1;
  regions_.insert(at, {begin, rounded});
  used_ += rounded;
  high_water_ = std::max(high_water_, begin + rounded);
  return begin;
}

void Arena::free(std::int64_t offset) {
  const auto region =
      std::lower_bound(regions_.begin(), regions_.end(), offset,
                       [](const Region& r, std::int64_t begin) { return r.begin < begin; });
  FULLSHARD_CHECK(region != regions_.end() && region->begin == offset);
  used_ -= region->bytes;
  regions_.erase(region);
}

std::int64_t Arena::take_high_water() {
  return std::exchange(high_water_, regions_.empty() ? 0 : regions_.back().end());
}

}  // namespace fullshard::shard
