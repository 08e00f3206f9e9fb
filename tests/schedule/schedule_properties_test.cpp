#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "fullshard/schedule/simulate.h"
#include "schedule/arbitrary.h"

namespace fullshard::schedule {
namespace {

struct Case {
  std::vector<std::int64_t> bytes = arbitrary::unit_bytes();
  ScheduleOptions options = arbitrary::options(bytes);
  Trace trace = arbitrary::trace(static_cast<int>(bytes.size()));

  Schedule plan() const { return make_schedule(trace, bytes, options); }
};

std::int64_t bytes_of(const std::set<int>& units, const std::vector<std::int64_t>& bytes) {
  std::int64_t total = 0;
  for (const int unit : units) total += bytes[static_cast<std::size_t>(unit)];
  return total;
}

// A replay in the plainest way; checks on the way that the plan can be carried out.
SimulationResult replay(const Schedule& plan, const std::vector<std::int64_t>& bytes) {
  SimulationResult result;
  result.unit_gathers.resize(bytes.size());
  std::set<int> resident;
  const auto gather = [&](int unit, bool joins) {
    result.gathers += 1;
    if (!joins) result.collectives += 1;
    result.gathered_bytes += bytes[static_cast<std::size_t>(unit)];
    result.unit_gathers[static_cast<std::size_t>(unit)] += 1;
    resident.insert(unit);
    result.peak_bytes = std::max(result.peak_bytes, bytes_of(resident, bytes));
  };
  for (const Event& event : plan.events) {
    for (const int unit : event.evict) RC_ASSERT(resident.erase(unit) == 1U);
    bool gathers = !resident.contains(event.touch.unit);
    if (gathers) gather(event.touch.unit, false);
    for (const Ahead& ahead : event.gather_ahead) {
      RC_ASSERT(!resident.contains(ahead.unit));
      RC_ASSERT(gathers || !ahead.joins);
      gather(ahead.unit, ahead.joins);
      gathers = true;
    }
    RC_ASSERT(resident.contains(event.touch.unit));
  }
  for (const int unit : plan.evict_at_end) RC_ASSERT(resident.erase(unit) == 1U);
  RC_ASSERT(resident.empty());
  return result;
}

RC_GTEST_PROP(ScheduleProperty, APlanHasTheEventsOfItsTraceAndLeavesNothingResident, ()) {
  const Case c;
  const Schedule plan = c.plan();
  RC_ASSERT(plan.events.size() == c.trace.size());
  for (std::size_t at = 0; at < plan.events.size(); ++at) {
    RC_ASSERT(plan.events[at].touch == c.trace.events()[at]);
  }
  replay(plan, c.bytes);
}

RC_GTEST_PROP(ScheduleProperty, SimulationEqualsAReplayByHand, ()) {
  const Case c;
  const SimulationResult simulated = simulate(c.plan(), c.bytes);
  const SimulationResult expected = replay(c.plan(), c.bytes);
  RC_ASSERT(simulated.peak_bytes == expected.peak_bytes);
  RC_ASSERT(simulated.gathers == expected.gathers);
  RC_ASSERT(simulated.collectives == expected.collectives);
  RC_ASSERT(simulated.gathered_bytes == expected.gathered_bytes);
  RC_ASSERT(simulated.unit_gathers == expected.unit_gathers);
}

RC_GTEST_PROP(ScheduleProperty, PeakStaysWithinTheLimit, ()) {
  Case c;
  RC_PRE(c.options.max_unsharded_bytes > 0);
  RC_ASSERT(replay(c.plan(), c.bytes).peak_bytes <= c.options.max_unsharded_bytes);
}

bool recomputes(const Trace& trace) {
  return std::any_of(trace.events().begin(), trace.events().end(),
                     [](const Touch& touch) { return touch.phase == Phase::kRecompute; });
}

RC_GTEST_PROP(ScheduleProperty, FullShardHoldsOneUnitBesidesTheTouchedAndThePrefetched, ()) {
  Case c;
  RC_PRE(!recomputes(c.trace));
  c.options.keep_for_backward.clear();
  c.options.keep_gathered.clear();
  c.options.keep_distance = 1;
  c.options.limit_all_gathers = true;
  c.options.gather_bucket_bytes = 0;
  const int depth = std::max(c.options.forward_prefetch, c.options.backward_prefetch);
  std::set<int> resident;
  for (const Event& event : c.plan().events) {
    for (const int unit : event.evict) resident.erase(unit);
    resident.insert(event.touch.unit);
    for (const Ahead& ahead : event.gather_ahead) resident.insert(ahead.unit);
    RC_ASSERT(resident.size() <= 1U + static_cast<std::size_t>(std::max(1, depth)));
  }
}

RC_GTEST_PROP(ScheduleProperty, AUnitGatheredAheadIsUsedBeforeItIsEvicted, ()) {
  const Case c;
  std::set<int> waiting;
  for (const Event& event : c.plan().events) {
    for (const int unit : event.evict) RC_ASSERT(!waiting.contains(unit));
    waiting.erase(event.touch.unit);
    for (const Ahead& ahead : event.gather_ahead) waiting.insert(ahead.unit);
  }
  RC_ASSERT(waiting.empty());
}

// Events from one whose plan gathers a unit ahead to the next touch of that unit.
std::size_t distance_to_use(const Schedule& plan, std::size_t at, int unit) {
  std::size_t use = at + 1;
  while (plan.events.at(use).touch.unit != unit) ++use;
  return use - at;
}

RC_GTEST_PROP(ScheduleProperty, LimitedAUnitIsGatheredNoFurtherAheadThanThePhasesDepth, ()) {
  Case c;
  c.options.limit_all_gathers = true;
  c.options.gather_bucket_bytes = 0;
  const Schedule plan = c.plan();
  for (std::size_t at = 0; at < plan.events.size(); ++at) {
    const Event& event = plan.events[at];
    const int depth = event.touch.phase == Phase::kForward ? c.options.forward_prefetch
                                                           : c.options.backward_prefetch;
    for (const Ahead& ahead : event.gather_ahead) {
      RC_ASSERT(distance_to_use(plan, at, ahead.unit) <= static_cast<std::size_t>(depth));
    }
  }
}

RC_GTEST_PROP(ScheduleProperty, UnlimitedNothingOfThePhaseThatWouldFitIsLeftForLater, ()) {
  Case c;
  c.options.limit_all_gathers = false;
  const Schedule plan = c.plan();
  std::set<int> resident;
  for (std::size_t at = 0; at < plan.events.size(); ++at) {
    const Event& event = plan.events[at];
    for (const int unit : event.evict) resident.erase(unit);
    resident.insert(event.touch.unit);
    for (const Ahead& ahead : event.gather_ahead) resident.insert(ahead.unit);
    const auto next = std::find_if(plan.events.begin() + static_cast<std::ptrdiff_t>(at),
                                   plan.events.end(), [&](const Event& later) {
                                     return later.touch.phase != event.touch.phase ||
                                            !resident.contains(later.touch.unit);
                                   });
    if (next == plan.events.end() || next->touch.phase != event.touch.phase) continue;
    std::set<int> more = resident;
    more.insert(next->touch.unit);
    RC_ASSERT(c.options.max_unsharded_bytes > 0);
    RC_ASSERT(bytes_of(more, c.bytes) > c.options.max_unsharded_bytes);
  }
}

RC_GTEST_PROP(ScheduleProperty, UnitsGatheredInOneGoFitTheBucketAndFollowOneAnother, ()) {
  const Case c;
  const Schedule plan = c.plan();
  for (std::size_t at = 0; at < plan.events.size(); ++at) {
    const Event& event = plan.events[at];
    std::set<int> bucket = {event.touch.unit};
    std::size_t used = 0;
    for (const Ahead& ahead : event.gather_ahead) {
      const std::size_t distance = distance_to_use(plan, at, ahead.unit);
      if (!ahead.joins) bucket.clear();
      RC_ASSERT(distance > used);  // in the order of use
      used = distance;
      bucket.insert(ahead.unit);
      RC_ASSERT(!ahead.joins || bytes_of(bucket, c.bytes) <= c.options.gather_bucket_bytes);
    }
  }
}

RC_GTEST_PROP(ScheduleProperty, WithoutALimitABucketAddsNoGathersAndNoCollectives, ()) {
  Case c;
  c.options.max_unsharded_bytes = 0;
  const SimulationResult with = simulate(c.plan(), c.bytes);
  c.options.gather_bucket_bytes = 0;
  const SimulationResult without = simulate(c.plan(), c.bytes);
  RC_ASSERT(without.collectives == without.gathers);
  RC_ASSERT(with.gathers <= without.gathers);
  RC_ASSERT(with.collectives <= without.collectives);
}

RC_GTEST_PROP(ScheduleProperty, WithoutALimitPrefetchAddsNoGathers, ()) {
  Case c;
  c.options.max_unsharded_bytes = 0;
  c.options.gather_bucket_bytes = 0;
  const std::int64_t with = simulate(c.plan(), c.bytes).gathers;
  c.options.forward_prefetch = 0;
  c.options.backward_prefetch = 0;
  c.options.limit_all_gathers = true;
  RC_ASSERT(with <= simulate(c.plan(), c.bytes).gathers);
}

RC_GTEST_PROP(ScheduleProperty, WithoutALimitKeptUnitsAreGatheredOnce, ()) {
  Case c;
  c.options.max_unsharded_bytes = 0;
  const SimulationResult run = simulate(c.plan(), c.bytes);
  for (std::size_t unit = 0; unit < c.options.keep_gathered.size(); ++unit) {
    RC_ASSERT(!c.options.keep_gathered[unit] || run.unit_gathers[unit] <= 1);
  }
}

// What a least-recently-used cache of `capacity` equal units gathers.
std::int64_t lru_gathers(const Trace& trace, std::size_t capacity) {
  std::vector<int> recent;  // oldest first
  std::int64_t gathers = 0;
  for (const Touch& touch : trace.events()) {
    const auto found = std::find(recent.begin(), recent.end(), touch.unit);
    if (found != recent.end()) {
      recent.erase(found);
    } else {
      ++gathers;
      if (recent.size() == capacity) recent.erase(recent.begin());
    }
    recent.push_back(touch.unit);
  }
  return gathers;
}

// The fewest gathers that any plan can do with: tries every choice of what to evict.
std::int64_t fewest_gathers(const Trace& trace, std::size_t capacity) {
  std::map<std::set<int>, std::int64_t> states = {{{}, 0}};
  const auto improve = [](auto& to, const std::set<int>& key, std::int64_t gathers) {
    const auto [at, inserted] = to.try_emplace(key, gathers);
    if (!inserted) at->second = std::min(at->second, gathers);
  };
  for (const Touch& touch : trace.events()) {
    std::map<std::set<int>, std::int64_t> next;
    for (auto [resident, gathers] : states) {
      if (resident.contains(touch.unit)) {
        improve(next, resident, gathers);
        continue;
      }
      std::vector<std::set<int>> choices;
      if (resident.size() < capacity) choices.push_back(resident);
      for (const int victim : resident) {
        choices.push_back(resident);
        choices.back().erase(victim);
      }
      for (std::set<int>& choice : choices) {
        choice.insert(touch.unit);
        improve(next, choice, gathers + 1);
      }
    }
    states = std::move(next);
  }
  std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
  for (const auto& [resident, gathers] : states) fewest = std::min(fewest, gathers);
  return fewest;
}

// Units of one size of which only the limit makes any leave: the setting in which Belady's rule is
// optimal.
struct Caching {
  int units = arbitrary::between(1, 7);
  std::size_t capacity = arbitrary::between<std::size_t>(1, 6);
  Trace trace = arbitrary::trace(units);

  std::int64_t gathers() const {
    const std::vector<std::int64_t> bytes(static_cast<std::size_t>(units), 10);
    const ScheduleOptions options{
        .max_unsharded_bytes = static_cast<std::int64_t>(capacity) * 10,
        .keep_gathered = std::vector<bool>(static_cast<std::size_t>(units), true),
        .forward_prefetch = arbitrary::between(0, 4),
        .backward_prefetch = arbitrary::between(0, 4),
        .limit_all_gathers = arbitrary::between(0, 4) != 0,
        .gather_bucket_bytes = arbitrary::between<std::int64_t>(0, 40)};
    return simulate(make_schedule(trace, bytes, options), bytes).gathers;
  }
};

RC_GTEST_PROP(ScheduleProperty, UnderALimitNeverMoreGathersThanLeastRecentlyUsed, ()) {
  const Caching c;
  RC_ASSERT(c.gathers() <= lru_gathers(c.trace, c.capacity));
}

RC_GTEST_PROP(ScheduleProperty, UnderALimitTheFewestGathersThereCanBe, ()) {
  const Caching c;
  RC_ASSERT(c.gathers() == fewest_gathers(c.trace, c.capacity));
}

}  // namespace
}  // namespace fullshard::schedule
