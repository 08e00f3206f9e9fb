#pragma once

#include <chrono>

#include "fullshard/base/deadline.h"

namespace fullshard::comm::shared {

/// A rank that runs answers in far less; one that does not is stopped.
inline constexpr base::Duration kLongestRollCall = std::chrono::seconds(2);

/// A group that can ask its ranks whether they still run, whatever they are doing.
class RollCall {
 public:
  virtual ~RollCall() = default;

  /// The world's number of a rank that has not answered within `grace`, or that the group knows to
  /// have failed it; -1 when there is none. Any thread may call.
  virtual int find_silent(base::Duration grace) noexcept = 0;
};

}  // namespace fullshard::comm::shared
