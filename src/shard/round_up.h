#pragma once

#include <cstdint>

namespace fullshard::shard {

/// The least multiple of `multiple` that is at least `value`; neither is negative.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace fullshard::shard
