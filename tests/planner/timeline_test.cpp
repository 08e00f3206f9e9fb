#include "planner/timeline.h"

#include <gtest/gtest.h>

#include <vector>

#include "fullshard/planner/heads.h"

namespace fullshard::planner {
namespace {

using schedule::Phase;

constexpr double kRoot = 1;  // operations of a visit, one a second
constexpr double kBlock = 4;
const TimelinePlayer::Rates kRates{.seconds_per_flop = 1, .unit_overhead = 0};

// A root and two blocks: root, 1, 2, root | root, 2, 1, as a GPT's; backward takes as long.
UnitSet three_units() {
  UnitSet set;
  set.units.resize(3);
  set.visits = {{0, Phase::kForward, kRoot},  {1, Phase::kForward, kBlock},
                {2, Phase::kForward, kBlock}, {0, Phase::kForward, kRoot},
                {0, Phase::kBackward, kRoot}, {2, Phase::kBackward, kBlock},
                {1, Phase::kBackward, kBlock}};
  set.completed_by = {6, 6, 5};
  return set;
}

Timeline play(const UnitCosts& each, int prefetch) {
  const UnitSet set = three_units();
  const std::vector<UnitCosts> costs(3, each);
  const std::vector<std::int64_t> bytes(3, each.bytes);
  const auto schedule = schedule::make_schedule(
      set.trace(), bytes, {.forward_prefetch = prefetch, .backward_prefetch = prefetch});
  return TimelinePlayer(set, costs, kRates).play(schedule);
}

TEST(Timeline, WithoutANetworkOnlyComputingAndAddingCount) {
  const Timeline timeline = play({.bytes = 64, .adding = 0.5}, 0);
  EXPECT_DOUBLE_EQ(timeline.compute, 19);
  EXPECT_DOUBLE_EQ(timeline.adding, 1.5);
  EXPECT_EQ(timeline.gather_waits, 0);
  EXPECT_EQ(timeline.reduction_waits, 0);
  EXPECT_EQ(timeline.gather_buffers, 0);
}

TEST(Timeline, GathersOnTouchAreWaitedFor) {
  // Root, 1, 2 (which is still there for its backward but for the root between) and root again.
  const Timeline timeline = play({.bytes = 64, .gather = 2}, 0);
  EXPECT_DOUBLE_EQ(timeline.gather_waits, 2 * 6);
}

TEST(Timeline, AGatherAheadHidesBehindTheUnitBeforeIt) {
  const Timeline ahead = play({.bytes = 64, .gather = 2}, 1);
  // The first of all is waited for; unit 1, and unit 2 in backward, one second more than the root
  // computes. The others hide behind a block.
  EXPECT_DOUBLE_EQ(ahead.gather_waits, 2 + 1 + 1);
  EXPECT_EQ(ahead.gather_buffers, 2 * 64);
}

TEST(Timeline, ReductionsHideBehindBackwardButForTheLast) {
  const Timeline timeline = play({.bytes = 64, .reduce = 3}, 0);
  // Unit 2 while unit 1 goes back; then unit 1 and the root.
  EXPECT_DOUBLE_EQ(timeline.reduction_waits, 6);
  EXPECT_EQ(timeline.gradient_buffers, 3 * 64);
}

TEST(Timeline, AReductionLongerThanAUnitHoldsUpTheNext) {
  EXPECT_DOUBLE_EQ(play({.bytes = 64, .reduce = 5}, 0).reduction_waits, (5 - 4) + 5 + 5);
}

TEST(Timeline, WhatIsNotGatheredWaitsForNothing) {
  EXPECT_EQ(play({.bytes = 64, .is_gathered = false, .gather = 2}, 0).gather_waits, 0);
}

TEST(Timeline, ASlowerNetworkIsNeverQuicker) {
  double before = 0;
  for (const double seconds : {0.0, 0.5, 1.0, 2.0, 4.0, 8.0}) {
    for (const int prefetch : {0, 1}) {
      const Timeline timeline = play({.bytes = 64, .gather = seconds, .reduce = seconds}, prefetch);
      const double exposed = timeline.gather_waits + timeline.reduction_waits;
      if (prefetch == 1) {
        EXPECT_GE(exposed, before);
        before = exposed;
      }
      EXPECT_DOUBLE_EQ(timeline.compute, 19);
    }
  }
}

TEST(BufferCount, KeepsWhatWasEverNeededOfEachSize) {
  BufferCount buffers;
  buffers.take(10);
  buffers.take(10);
  buffers.give_back(10);
  buffers.take(100);
  buffers.take(10);
  EXPECT_EQ(buffers.bytes(), 2 * 10 + 100);
}

}  // namespace
}  // namespace fullshard::planner
