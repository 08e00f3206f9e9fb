#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fullshard/schedule/trace.h"

namespace fullshard::schedule {

struct ScheduleOptions {
  /// By unit: stays from its forward to its last touch in backward (SHARD_GRAD_OP), which saves a
  /// gather at the price of all these units' memory at once; others leave after their forward and
  /// are gathered again for their backward (FULL_SHARD). Empty: none stays.
  std::vector<bool> keep_for_backward = {};

  /// Most bytes of gathered units at any time; 0 is no limit. The limit comes before every other
  /// wish here: where they do not fit together, the unit whose next use is farthest leaves first.
  std::int64_t max_unsharded_bytes = 0;

  /// A unit stays when at most this many events of other units come before its next touch in the
  /// same phase, where backward and what it recomputes are one. Larger saves gathers of units that
  /// take turns, and holds them longer.
  int keep_distance = 1;

  /// By unit: gathered at its first touch and kept to the end of the step. Empty: none.
  std::vector<bool> keep_gathered = {};

  /// Events to look ahead: while a forward event runs, the units of the next `forward_prefetch`
  /// events are gathered as far as they fit under the limit, and none of them is evicted before it
  /// is used. 0 gathers on touch; 1 hides one gather behind one unit's computation and holds one
  /// unit more.
  int forward_prefetch = 0;
  /// The same while a backward event runs.
  int backward_prefetch = 0;

  /// true: at most as many events ahead as the two depths say, which bounds the gathers in flight.
  /// false: in either phase as far ahead as the limit allows, up to the end of the phase.
  bool limit_all_gathers = true;

  /// When a unit is gathered, the units used after it that are not resident are gathered with it,
  /// in one collective, while their bytes together, its own included, are at most this and fit
  /// under the limit. 0 gathers each alone. Larger makes fewer collectives of small units, and
  /// holds them earlier.
  std::int64_t gather_bucket_bytes = 0;
};

/// A unit gathered before it is touched.
struct Ahead {
  int unit = 0;
  /// In one collective with the gather before it in the same event: of the entry before, or, for
  /// the first entry, of the touched unit.
  bool joins = false;

  bool operator==(const Ahead&) const = default;
};

/// What is done at one event, in this order: evict, gather the touched unit if it is not resident,
/// gather ahead.
struct Event {
  Touch touch;
  std::vector<int> evict;
  std::vector<Ahead> gather_ahead;

  bool operator==(const Event&) const = default;
};

/// A unit outside the plan's events that is gathered in the first step after an update and resident
/// from there until the next update: SHARD_OPTIMIZER_ONLY, and `dynamic` over messages.
struct Staying {
  std::size_t after = 0;  ///< events of the step that came before, at most all
  int unit = 0;
  bool joins = false;  ///< in one collective with the entry before it, of the same `after`

  bool operator==(const Staying&) const = default;
};

/// The residency plan of one step, which begins and ends with nothing resident but units that stay.
struct Schedule {
  int units = 0;  ///< every unit is below this
  std::vector<Event> events;
  std::vector<int> evict_at_end;
  std::vector<Staying> staying = {};  ///< in the order of their gathers, `after` ascending

  bool operator==(const Schedule&) const = default;
};

/// Plans the step that `trace` recorded. `unit_bytes` gives the gathered size of every unit.
///
/// A resident unit is evicted as soon as another unit is touched, unless its next touch
///   - is the next event, or one that was looked ahead to when an event before it was planned,
///   - is in the same phase after at most keep_distance events of other units,
///   - is used by the operator that makes this touch,
///   - comes after a kRecompute and is kBackward, or kRecompute again with a kBackward after that,
/// or it has a backward touch ahead and keep_for_backward names it, or keep_gathered names it.
/// No unit stays past the end; what does is not in a trace, and for a Follower to note. Then units
/// are evicted by farthest next use (Belady's rule) until the touched unit fits.
///
/// Throws base::Error(kInvalidArgument) when a touched unit alone, or those of one operator
/// together, are above max_unsharded_bytes, when the trace names a unit that unit_bytes lacks, or
/// for options out of range.
Schedule make_schedule(const Trace& trace, std::span<const std::int64_t> unit_bytes,
                       const ScheduleOptions& options);

/// Throws base::Error(kInvalidArgument) for options that no trace over these units could use: a
/// negative number, keep_gathered or keep_for_backward of another length, a negative unit size.
void validate(std::span<const std::int64_t> unit_bytes, const ScheduleOptions& options);

}  // namespace fullshard::schedule
