#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace fullshard::schedule {

enum class Phase {
  kForward,
  kBackward,
  kRecompute,  ///< inside backward: what forward did is done again, for the backward that follows
};

/// An operator has read a parameter of a unit. Units are small non-negative integers.
struct Touch {
  int unit = 0;
  Phase phase = Phase::kForward;
  /// The operator reads parameters of this many other units too: those touched last. They have to
  /// be resident together.
  int with = 0;

  bool operator==(const Touch&) const = default;

  /// Whether a touch right after this one is part of the same event.
  bool continues(const Touch& next) const { return unit == next.unit && phase == next.phase; }
};

/// The touches of one step in order, where consecutive touches of the same unit and phase count as
/// one event: a block of a model makes dozens of touches and one event.
class Trace {
 public:
  /// Returns whether the touch began a new event.
  bool add(Touch touch) {
    if (!events_.empty() && events_.back().continues(touch)) return false;
    events_.push_back(touch);
    return true;
  }

  const std::vector<Touch>& events() const& { return events_; }
  std::vector<Touch> events() && { return std::move(events_); }
  std::size_t size() const { return events_.size(); }
  bool empty() const { return events_.empty(); }
  void clear() { events_.clear(); }

  bool operator==(const Trace&) const = default;

 private:
  std::vector<Touch> events_;
};

}  // namespace fullshard::schedule
