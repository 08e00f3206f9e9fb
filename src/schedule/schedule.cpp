#include "fullshard/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "fullshard/base/error.h"
#include "fullshard/base/text.h"
#include "schedule/limit.h"

namespace fullshard::schedule {
namespace {

using base::Error;
using base::ErrorCode;

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

bool same_way(Phase a, Phase b) { return (a == Phase::kForward) == (b == Phase::kForward); }

/// Walks a trace once, with perfect knowledge of what comes.
class Planner {
 public:
  Planner(std::span<const Touch> trace, std::span<const std::int64_t> unit_bytes,
          const ScheduleOptions& options)
      : trace_(trace),
        unit_bytes_(unit_bytes),
        options_(options),
        next_of_event_(trace.size(), kNever),
        end_of_phase_(trace.size()),
        to_backward_(trace.size()),
        next_use_(unit_bytes.size(), kNever),
        last_backward_(unit_bytes.size(), kNever),
        last_phase_(unit_bytes.size(), Phase::kForward) {
    look_ahead();
  }

  Schedule plan() {
    Schedule schedule;
    schedule.units = static_cast<int>(unit_bytes_.size());
    for (std::size_t at = 0; at < trace_.size(); ++at) schedule.events.push_back(plan_event(at));
    schedule.evict_at_end = resident_;
    return schedule;
  }

 private:
  static std::size_t index(int unit) { return static_cast<std::size_t>(unit); }

  /// Fills for every event the next one of the same unit, the last one of the same phase and
  /// whether it leads to a backward, and each unit's first and last events.
  void look_ahead() {
    for (std::size_t at = trace_.size(); at-- > 0;) {
      const std::size_t unit = index(trace_[at].unit);
      const bool ends =
          at + 1 == trace_.size() || !same_way(trace_[at + 1].phase, trace_[at].phase);
      end_of_phase_[at] = ends ? at : end_of_phase_[at + 1];
      next_of_event_[at] = next_use_[unit];
      to_backward_[at] = leads_to_backward(at);
      next_use_[unit] = at;
      if (trace_[at].phase != Phase::kForward && last_backward_[unit] == kNever) {
        last_backward_[unit] = at;
      }
    }
  }

  /// Whether event `at` is a backward, or recomputes for one that comes: several times where
  /// regions are inside regions.
  bool leads_to_backward(std::size_t at) const {
    if (trace_[at].phase != Phase::kRecompute) return trace_[at].phase == Phase::kBackward;
    return next_of_event_[at] != kNever && to_backward_[next_of_event_[at]];
  }

  Event plan_event(std::size_t at) {
    Event event{trace_[at], {}, {}};
    const int unit = event.touch.unit;
    find_held(at);
    evict_idle(at, event.evict);
    if (!is_resident(unit)) {
      while (!fits(unit)) evict(farthest(event.touch), event.evict);
      gather(unit);
      fill_bucket(at, event.gather_ahead);
    }
    next_use_[index(unit)] = next_of_event_[at];
    last_phase_[index(unit)] = event.touch.phase;
    gather_ahead(at, event.gather_ahead);
    return event;
  }

  /// What the operator of event `at` uses besides its unit and has touched already.
  void find_held(std::size_t at) {
    held_.clear();
    for (std::size_t k = at; k-- > 0 && held_.size() < index(trace_[at].with);) {
      const int unit = trace_[k].unit;
      if (unit != trace_[at].unit && !is_held(unit)) held_.push_back(unit);
    }
  }

  bool is_held(int unit) const {
    return std::find(held_.begin(), held_.end(), unit) != held_.end();
  }

  void evict_idle(std::size_t at, std::vector<int>& evicted) {
    const std::vector<int> candidates = resident_;
    for (const int unit : candidates) {
      if (unit != trace_[at].unit && !stays(unit, at)) evict(unit, evicted);
    }
  }

  bool stays(int unit, std::size_t at) const {
    const std::size_t i = index(unit);
    if (is_held(unit) || names(options_.keep_gathered, i)) return true;
    if (next_use_[i] == kNever) return false;
    const std::size_t events_between = next_use_[i] - at;
    if (events_between <= 1 || next_use_[i] <= horizon_) return true;
    if (last_phase_[i] == Phase::kRecompute && to_backward_[next_use_[i]]) return true;
    const bool same_phase = same_way(trace_[next_use_[i]].phase, last_phase_[i]);
    if (same_phase && events_between <= static_cast<std::size_t>(options_.keep_distance))
      return true;
    const bool backward_ahead = last_backward_[i] != kNever && last_backward_[i] >= at;
    return backward_ahead && names(options_.keep_for_backward, i);
  }

  /// In order of use and never past the first that does not fit: a unit gathered ahead must not be
  /// evicted again to make room for one that is used before it.
  void gather_ahead(std::size_t at, std::vector<Ahead>& gathered) {
    const std::size_t last = last_to_prefetch(at);
    horizon_ = std::max(horizon_, last);
    for (std::size_t k = at + 1; k <= last; ++k) {
      const int unit = trace_[k].unit;
      if (is_resident(unit)) continue;
      if (!fits(unit)) return;
      gather(unit);
      gathered.push_back({unit, false});
      fill_bucket(k, gathered);
    }
  }

  /// Gathers what is used after event `at`, whose unit has just been gathered, together with it. In
  /// order of use, for the same reason.
  void fill_bucket(std::size_t at, std::vector<Ahead>& gathered) {
    if (options_.gather_bucket_bytes == 0) return;  // where even units without bytes go alone
    std::int64_t left = options_.gather_bucket_bytes - bytes(trace_[at].unit);
    for (std::size_t k = at + 1; k < trace_.size(); ++k) {
      const int unit = trace_[k].unit;
      if (is_resident(unit)) continue;
      if (bytes(unit) > left || !fits(unit)) return;
      left -= bytes(unit);
      gather(unit);
      gathered.push_back({unit, true});
      horizon_ = std::max(horizon_, k);
    }
  }

  /// The last event whose unit may be gathered while event `at` runs.
  std::size_t last_to_prefetch(std::size_t at) const {
    const Phase phase = trace_[at].phase;
    const int depth =
        phase == Phase::kForward ? options_.forward_prefetch : options_.backward_prefetch;
    const std::size_t last = std::min(at + static_cast<std::size_t>(depth), trace_.size() - 1);
    return options_.limit_all_gathers ? last : std::max(last, end_of_phase_[at]);
  }

  /// Of the units that need not stay for the operator of this touch.
  int farthest(const Touch& touch) const {
    const auto key = [&](int unit) {
      return std::tuple(!is_held(unit), next_use_[index(unit)], bytes(unit));
    };
    const auto found = std::max_element(resident_.begin(), resident_.end(),
                                        [&](int a, int b) { return key(a) < key(b); });
    if (found == resident_.end() || is_held(*found)) {
      refuse_together(touch, resident_bytes_ + bytes(touch.unit), options_);
    }
    return *found;
  }

  std::int64_t bytes(int unit) const { return unit_bytes_[index(unit)]; }
  bool fits(int unit) const { return within_limit(options_, resident_bytes_ + bytes(unit)); }
  bool is_resident(int unit) const {
    return std::find(resident_.begin(), resident_.end(), unit) != resident_.end();
  }

  void gather(int unit) {
    resident_.insert(std::lower_bound(resident_.begin(), resident_.end(), unit), unit);
    resident_bytes_ += bytes(unit);
  }

  void evict(int unit, std::vector<int>& evicted) {
    resident_.erase(std::find(resident_.begin(), resident_.end(), unit));
    resident_bytes_ -= bytes(unit);
    evicted.push_back(unit);
  }

  std::span<const Touch> trace_;
  std::span<const std::int64_t> unit_bytes_;
  const ScheduleOptions& options_;
  std::vector<std::size_t> next_of_event_;  // by event
  std::vector<std::size_t> end_of_phase_;   // by event: the last before the other phase
  std::vector<bool> to_backward_;           // by event: leads_to_backward()
  std::vector<std::size_t> next_use_;       // by unit, from the event in hand on
  std::vector<std::size_t> last_backward_;  // by unit
  std::vector<Phase> last_phase_;           // by unit
  std::vector<int> resident_;               // ascending
  std::vector<int> held_;                   // besides the touched one, by the operator in hand
  std::int64_t resident_bytes_ = 0;
  std::size_t horizon_ = 0;  // what is used up to this event and resident stays until then
};

}  // namespace

void validate(std::span<const std::int64_t> unit_bytes, const ScheduleOptions& options) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, "schedule: " + what);
  };
  const auto not_negative = [&](std::string_view name, std::int64_t value) {
    if (value < 0) refuse(fmt::format("{} is {}; it must be 0 or more", name, value));
  };
  not_negative("max_unsharded_bytes", options.max_unsharded_bytes);
  not_negative("keep_distance", options.keep_distance);
  not_negative("forward_prefetch", options.forward_prefetch);
  not_negative("backward_prefetch", options.backward_prefetch);
  not_negative("gather_bucket_bytes", options.gather_bucket_bytes);
  const auto one_a_unit = [&](std::string_view name, const std::vector<bool>& given) {
    if (given.empty() || given.size() == unit_bytes.size()) return;
    refuse(fmt::format("{} has {} entries for {} units; give one a unit, or none", name,
                       given.size(), unit_bytes.size()));
  };
  one_a_unit("keep_gathered", options.keep_gathered);
  one_a_unit("keep_for_backward", options.keep_for_backward);
  for (std::size_t unit = 0; unit < unit_bytes.size(); ++unit) {
    not_negative(fmt::format("the size of unit {}", unit), unit_bytes[unit]);
  }
}

void check_fits(int unit, std::int64_t bytes, const ScheduleOptions& options) {
  if (within_limit(options, bytes)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("unit {} has {} bytes ({}) and max_unsharded_bytes is {} ({}): raise the "
                          "limit to the largest unit at least, or wrap the unit in smaller ones",
                          unit, bytes, base::format_bytes(bytes), options.max_unsharded_bytes,
                          base::format_bytes(options.max_unsharded_bytes)));
}

void refuse_together(const Touch& touch, std::int64_t bytes, const ScheduleOptions& options) {
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("unit {} is used by one operator together with {} other(s), {} bytes ({}) "
                  "in all, and max_unsharded_bytes is {} ({}): raise the limit to that, or "
                  "put the parameters of that operator into one unit",
                  touch.unit, touch.with, bytes, base::format_bytes(bytes),
                  options.max_unsharded_bytes, base::format_bytes(options.max_unsharded_bytes)));
}

void check_known(int unit, std::size_t units) {
  if (unit >= 0 && static_cast<std::size_t>(unit) < units) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("schedule: unit {} does not exist; there are {} units", unit, units));
}

Schedule make_schedule(const Trace& trace, std::span<const std::int64_t> unit_bytes,
                       const ScheduleOptions& options) {
  validate(unit_bytes, options);
  for (const Touch& touch : trace.events()) {
    check_known(touch.unit, unit_bytes.size());
    check_fits(touch.unit, unit_bytes[static_cast<std::size_t>(touch.unit)], options);
  }
  return Planner(trace.events(), unit_bytes, options).plan();
}

}  // namespace fullshard::schedule
