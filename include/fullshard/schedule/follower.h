#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fullshard/schedule/schedule.h"

namespace fullshard::schedule {

/// What the engine does at a touch, in this order: evict, gather the touched unit if it is not
/// resident, gather ahead. The spans hold until the next call on the follower. `evict` names
/// resident units only and `gather_ahead` units that are not resident only.
struct Decision {
  bool deviated = false;  ///< this touch is the one that left the schedule
  std::span<const int> evict;
  std::span<const int> gather_ahead;
};

/// The engine's cursor through a step, without tensors. It records the first step, makes a schedule
/// of it, and follows that schedule in later steps. Where a step takes another way it goes on by
/// demand, keeping the touched unit and the one used before it, and the step as it really went is
/// the schedule of the next. A deviation is never an error.
///
/// Two plans are remembered, each of the last step of its kind: steps with a backward touch
/// (training) and steps without (evaluation), so that an evaluation between two training steps
/// costs neither its schedule. begin_pass() says which to expect; when the touches tell otherwise
/// and fit the other plan so far, the follower changes over to it.
///
/// Residency here is what the decisions imply; the engine must carry them out. A touch of the unit
/// and phase touched last costs one comparison; a followed touch allocates nothing.
/// Not thread-safe: the engine calls it under the lock that orders its touches.
class Follower {
 public:
  /// Throws base::Error(kInvalidArgument) for bad options, or a unit that alone is above the limit.
  Follower(std::vector<std::int64_t> unit_bytes, ScheduleOptions options);

  /// Says at the start of a step whether gradients are enabled, so a backward is likely. Optional:
  /// without it a backward is expected. Throws base::Error(kMisuse) between a touch and end_step().
  void begin_pass(bool grad_enabled);

  /// Throws base::Error(kInvalidArgument) for a unit out of range.
  Decision on_touch(int unit, Phase phase);

  /// Closes the step, also one cut short by an exception, and returns the units that are still
  /// resident and have to be evicted. A step that ended before its plan did is planned anew.
  std::span<const int> end_step();

  bool resident(int unit) const { return resident_.at(static_cast<std::size_t>(unit)); }
  std::int64_t resident_bytes() const { return resident_bytes_; }

  /// Whether the step follows a schedule now, rather than going by demand.
  bool following() const { return plan_ != nullptr; }
  /// Steps that left their schedule, early ends included.
  std::int64_t deviations() const { return deviations_; }

  /// The remembered plans; null when no step of that kind has ended yet.
  const Schedule* training_schedule() const { return training_ ? &*training_ : nullptr; }
  const Schedule* forward_only_schedule() const {
    return forward_only_ ? &*forward_only_ : nullptr;
  }

 private:
  bool expects(const Schedule& plan, Touch touch) const;
  bool follows_prefix(const Schedule& plan, Touch touch) const;
  void start();
  bool choose_plan(Touch touch);
  void change_over(const Schedule& plan);
  Decision follow(Touch touch);
  Decision on_demand(Touch touch, bool deviated);
  void evict_for(int unit);
  int least_recent(int touched, bool spare_kept) const;
  void evict(int unit);
  void gather(int unit);
  void leave_plan();
  void remember();

  std::vector<std::int64_t> unit_bytes_;
  ScheduleOptions options_;
  std::optional<Schedule> training_;
  std::optional<Schedule> forward_only_;
  const Schedule* plan_ = nullptr;  // followed now: training_, forward_only_ or neither
  bool in_step_ = false;
  bool grad_enabled_ = true;
  std::size_t events_ = 0;  // events of this step so far; when following, events of plan_ done
  Touch last_;              // the last event's touch, when events_ > 0
  Trace trace_;             // this step's events, kept only while no plan is followed
  std::vector<bool> resident_;
  std::int64_t resident_bytes_ = 0;
  std::vector<std::int64_t> last_use_;  // by unit: number of its last event, across steps
  std::int64_t clock_ = 0;
  std::int64_t deviations_ = 0;
  std::vector<int> evicted_;  // what the decision in hand points to; capacity for every unit
  std::vector<int> ahead_;
};

}  // namespace fullshard::schedule
