#pragma once

#include <algorithm>
#include <cstdint>

namespace fullshard::layout {

/// Half-open range of elements. A range with end <= begin is empty.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return std::max<std::int64_t>(end - begin, 0); }
  bool empty() const { return end <= begin; }
  bool contains(std::int64_t element) const { return begin <= element && element < end; }

  bool operator==(const Range&) const = default;
};

/// The elements in both; {b, b} for some b when there are none.
inline Range intersect(Range a, Range b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace fullshard::layout
