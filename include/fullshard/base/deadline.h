#pragma once

#include <chrono>

namespace fullshard::base {

using Clock = std::chrono::steady_clock;
using Duration = std::chrono::nanoseconds;

/// A point in time by which a blocking call must have ended, fixed when the call begins, so that
/// waiting in several pieces never waits longer than promised.
class Deadline {
 public:
  /// A timeout too long for the clock, such as Duration::max(), never passes.
  static Deadline after(Duration timeout) {
    const Clock::time_point now = Clock::now();
    const bool reachable = timeout < Clock::time_point::max() - now;
    return Deadline(reachable ? now + timeout : Clock::time_point::max());
  }

  bool passed() const { return Clock::now() >= at_; }

  /// Time left, never negative.
  Duration remaining() const {
    const auto left = std::chrono::duration_cast<Duration>(at_ - Clock::now());
    return left.count() > 0 ? left : Duration{0};
  }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

/// Seconds as a double, for reports.
inline double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace fullshard::base
