#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fullshard/schedule/schedule.h"

namespace fullshard::schedule {

/// What the engine does at a touch, in this order: evict, gather the touched unit if it is not
/// resident, gather ahead. The spans hold until the next call on the follower. `evict` names
/// resident units only and `gather_ahead` units that are not resident only; one that joins goes
/// with the gather before it, which is of this touch too.
struct Decision {
  bool deviated = false;  ///< this touch is the one that left the schedule
  std::span<const int> evict;
  std::span<const Ahead> gather_ahead;
};

/// The engine's cursor through a step, without tensors. It records the first step, makes a schedule
/// of it, and follows that schedule in later steps. Where a step takes another way it goes on by
/// demand, keeping the touched unit and the one used before it, and the step as it really went is
/// the schedule of the next. A deviation is never an error.
///
/// Two plans are remembered, each of the last step of its kind: steps with a backward touch
/// (training) and steps without (evaluation), so that an evaluation between two training steps
/// costs neither its schedule. A step is expected to be a training step; when its touches tell
/// otherwise and fit the other plan so far, the follower changes over to it.
///
/// Residency here is what the decisions imply; the engine must carry them out. A touch of the unit
/// and phase touched last costs one comparison; a followed touch allocates nothing.
/// Not thread-safe: the engine calls it under the lock that orders its touches.
class Follower {
 public:
  /// Throws base::Error(kInvalidArgument) for bad options, or a unit that alone is above the limit.
  Follower(std::vector<std::int64_t> unit_bytes, ScheduleOptions options);

  /// Whether this touch should be the first of a new step, which is for the engine to carry out:
  /// forwards that no backward and no update ends come again and again. They are taken apart where
  /// one ends that came before as a step of its own, or where so many have come that the trace
  /// would grow too long. Never for a touch with other units.
  bool begins_anew(Touch touch) const;

  /// Throws base::Error(kInvalidArgument) for a unit out of range, and where units that one
  /// operator uses do not fit under the limit together.
  Decision on_touch(Touch touch);
  Decision on_touch(int unit, Phase phase) { return on_touch({unit, phase}); }

  /// Notes that units outside the plans have been touched, which stay until the next update, and
  /// what was gathered for it. The plan of a step has them as they were gathered the last time; in
  /// that of the other kind they are there from the beginning.
  void on_staying(Phase phase, std::span<const Ahead> gathered);

  /// Closes the step, also one cut short by an exception, and returns the units that are still
  /// resident and have to be evicted. A step that ended before its plan did is planned anew.
  std::span<const int> end_step();

  bool resident(int unit) const { return resident_.at(static_cast<std::size_t>(unit)); }
  std::int64_t resident_bytes() const { return resident_bytes_; }

  /// Whether the step follows a schedule now, rather than going by demand.
  bool following() const { return followed_.has_value(); }
  /// Steps that left their schedule, early ends included.
  std::int64_t deviations() const { return deviations_; }

  /// The remembered plan of each kind; null when no step of that kind has ended yet.
  const Schedule* training_schedule() const { return plan(Kind::kTraining); }
  const Schedule* forward_only_schedule() const { return plan(Kind::kForwardOnly); }

 private:
  enum class Kind : std::size_t { kTraining = 0, kForwardOnly = 1 };
  static Kind other(Kind kind);
  Kind kind_of_step() const;

  const Schedule* plan(Kind kind) const;
  const Schedule* followed() const { return followed_ ? plan(*followed_) : nullptr; }
  void start_step();
  bool stay_on_a_plan(Touch touch);
  bool expects(const Schedule& candidate, Touch touch) const;
  bool fits_so_far(const Schedule& candidate) const;
  bool ended_as_planned() const;
  void change_over(Kind kind);
  void leave_plan();
  void follow();
  void go_by_demand(Touch touch);
  bool is_kept(std::size_t unit) const;
  std::size_t others_free_to_go(int touched) const;
  int least_recent(const Touch& touch) const;
  bool is_held(std::size_t unit, const Touch& touch) const;
  Touch first_of_step() const;
  void evict(int unit);
  void gather(int unit);
  void remember_trace();
  void remember_staying();

  std::vector<std::int64_t> unit_bytes_;
  ScheduleOptions options_;
  std::array<std::optional<Schedule>, 2> plans_;  // by Kind
  std::optional<Kind> followed_;                  // the plan this step follows, if any
  bool in_step_ = false;
  bool had_backward_ = false;     // a touch of this step was, also of a unit that stays
  std::size_t done_ = 0;          // events of the followed plan that have happened
  std::vector<Staying> staying_;  // gathered in this step
  Trace trace_;                   // this step's events; filled only while no plan is followed
  Touch last_;                    // the event in hand, when in_step_
  std::vector<bool> resident_;
  std::int64_t resident_bytes_ = 0;
  std::vector<std::int64_t> last_use_;  // by unit: the clock at its last event
  std::int64_t clock_ = 0;              // events since construction
  std::int64_t deviations_ = 0;
  std::vector<int> evicted_;  // what the latest answer points to; capacity for every unit
  std::vector<Ahead> ahead_;
};

}  // namespace fullshard::schedule
