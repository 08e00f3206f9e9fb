#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "comm/device/plan.h"

namespace fullshard::comm::device {

/// Nothing in an exchange is empty.
inline void add(std::vector<Piece>& pieces, Piece piece) {
  if (piece.count > 0) pieces.push_back(piece);
}

/// Of a part of `count` elements, those from `begin` on, at most `step`.
inline std::int64_t slice(std::int64_t count, std::int64_t begin, std::int64_t step) {
  return std::clamp<std::int64_t>(count - begin, 0, step);
}

}  // namespace fullshard::comm::device
