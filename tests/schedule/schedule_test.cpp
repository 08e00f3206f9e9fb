#include "fullshard/schedule/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "fullshard/base/error.h"
#include "fullshard/schedule/simulate.h"
#include "schedule/steps.h"

namespace fullshard::schedule {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kBlocks = 4;
const std::vector<std::int64_t> kGptBytes(kBlocks + 1, 100);
const std::vector<bool> kAll(kBlocks + 1, true);

SimulationResult gpt_run(const ScheduleOptions& options) {
  return simulate(make_schedule(steps::gpt(kBlocks), kGptBytes, options), kGptBytes);
}

TEST(Trace, RepeatedTouchesAreOneEvent) {
  Trace trace;
  EXPECT_TRUE(trace.add({0, Phase::kForward}));
  EXPECT_FALSE(trace.add({0, Phase::kForward}));
  EXPECT_TRUE(trace.add({0, Phase::kBackward}));
  EXPECT_TRUE(trace.add({1, Phase::kBackward}));
  EXPECT_EQ(trace.size(), 3U);
}

TEST(MakeSchedule, FullShardGathersEveryUnitOnceEachWay) {
  const SimulationResult run = gpt_run({});
  EXPECT_THAT(run.unit_gathers, Each(2));
  EXPECT_EQ(run.peak_bytes, 100);
}

TEST(MakeSchedule, ShardGradOpGathersEveryUnitOnce) {
  const SimulationResult run = gpt_run({.keep_for_backward = kAll});
  EXPECT_THAT(run.unit_gathers, Each(1));
  EXPECT_EQ(run.peak_bytes, 500);
}

TEST(MakeSchedule, ShardGradOpLetsAUnitGoAfterItsLastBackwardTouch) {
  const Schedule plan = make_schedule(steps::gpt(kBlocks), kGptBytes, {.keep_for_backward = kAll});
  EXPECT_THAT(plan.events.back().evict, ElementsAre(2));
  EXPECT_THAT(plan.evict_at_end, ElementsAre(1));
}

TEST(MakeSchedule, ShardGradOpDoesNotKeepWhatHasNoBackward) {
  const Trace trace = steps::of("f0 f1 f2 b2 b1");
  const std::vector<std::int64_t> bytes(3, 1);
  const Schedule plan =
      make_schedule(trace, bytes, {.keep_for_backward = std::vector<bool>(3, true)});
  EXPECT_THAT(plan.events[1].evict, ElementsAre(0));
  EXPECT_THAT(plan.events[2].evict, IsEmpty());
}

TEST(MakeSchedule, OnlyTheUnitsNamedStayForBackward) {
  const SimulationResult run = gpt_run({.keep_for_backward = {false, true, false, true, false}});
  EXPECT_THAT(run.unit_gathers, ElementsAre(2, 1, 2, 1, 2));
}

TEST(MakeSchedule, UnitsOfOneOperatorAreResidentTogether) {
  const std::vector<std::int64_t> bytes(4, 10);
  const Schedule plan = make_schedule(steps::of("f0 f1 f2+1 f1+1 f3"), bytes, {});
  EXPECT_THAT(plan.events[1].evict, ElementsAre(0));
  EXPECT_THAT(plan.events[2].evict, IsEmpty());
  EXPECT_THAT(plan.events[3].evict, IsEmpty());
  EXPECT_THAT(plan.events[4].evict, ElementsAre(1, 2));
  EXPECT_EQ(simulate(plan, bytes).peak_bytes, 20);
}

TEST(MakeSchedule, UnderALimitAnotherUnitMakesRoomForThoseOfOneOperator) {
  const std::vector<std::int64_t> bytes(4, 10);
  const Schedule plan =
      make_schedule(steps::of("f0 f1 f2+1 f3 f0"), bytes,
                    {.max_unsharded_bytes = 20, .keep_gathered = std::vector<bool>(4, true)});
  EXPECT_THAT(plan.events[2].evict, ElementsAre(0));
  EXPECT_EQ(simulate(plan, bytes).peak_bytes, 20);
}

TEST(MakeSchedule, UnitsOfOneOperatorThatDoNotFitAreAnError) {
  const std::vector<std::int64_t> bytes(3, 10);
  try {
    make_schedule(steps::of("f0 f1+1 f2+2"), bytes, {.max_unsharded_bytes = 20});
    FAIL() << "three units of 10 bytes under a limit of 20";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("unit 2"), HasSubstr("30 bytes"), HasSubstr("20")));
  }
}

TEST(MakeSchedule, ALastUnitStaysFromForwardIntoBackward) {
  const std::vector<std::int64_t> bytes(2, 1);
  const auto run = simulate(make_schedule(steps::of("f0 f1 b1 b0"), bytes, {}), bytes);
  EXPECT_THAT(run.unit_gathers, ElementsAre(2, 1));
}

TEST(MakeSchedule, ShardGradOpDoesNotKeepForAForwardAfterTheLastBackward) {
  const std::vector<std::int64_t> bytes(4, 1);
  const Schedule plan = make_schedule(steps::of("f0 b0 f1 f2 f3 f0"), bytes,
                                      {.keep_for_backward = std::vector<bool>(4, true)});
  EXPECT_THAT(plan.events[2].evict, ElementsAre(0));
}

TEST(MakeSchedule, AUnitStaysForTheVeryNextEventInWhateverPhase) {
  const std::vector<std::int64_t> bytes(2, 1);
  const Schedule plan = make_schedule(steps::of("f0 f1 b0"), bytes, {.keep_distance = 0});
  EXPECT_THAT(plan.events[1].evict, IsEmpty());
}

// A block of two units in a checkpointed region, and one in a region of two blocks.
TEST(MakeSchedule, WhatIsRecomputedStaysForItsBackward) {
  const std::vector<std::int64_t> bytes(4, 1);
  const Trace nested = steps::of("f0 f1 f0 f2 f3 f2 r2 r3 r2 b2 b3 b2 r0 r1 r0 b0 b1 b0");
  EXPECT_THAT(simulate(make_schedule(nested, bytes, {}), bytes).unit_gathers,
              ElementsAre(2, 2, 1, 2));
  const Trace wide = steps::of("f0 f1 f2 f3 r2 r3 b3 b2 r0 r1 b1 b0");
  const SimulationResult run = simulate(make_schedule(wide, bytes, {}), bytes);
  EXPECT_THAT(run.unit_gathers, ElementsAre(2, 2, 1, 1));
  EXPECT_EQ(run.peak_bytes, 2);
}

TEST(MakeSchedule, WhatIsRecomputedLeavesAfterItsBackward) {
  const std::vector<std::int64_t> bytes(3, 1);
  const Trace two_calls = steps::of("f0 f1 f2 f0 f1 f2 r2 b2 r1 b1 r0 b0 r2 b2 r1 b1 r0 b0");
  EXPECT_EQ(simulate(make_schedule(two_calls, bytes, {}), bytes).peak_bytes, 1);
}

// Nobody reads an embedding or frozen weights in backward.
TEST(MakeSchedule, WhatIsRecomputedLeavesWhereNoBackwardWantsIt) {
  const std::vector<std::int64_t> bytes(4, 1);
  const Trace trace = steps::of("f0 f1 f3 f0 f2 f3 r0 r2 r3 b3 b2 r0 r1 r3 b3 b1");
  const Schedule plan = make_schedule(trace, bytes, {});
  EXPECT_THAT(plan.events[7].evict, ElementsAre(0));
  EXPECT_THAT(simulate(plan, bytes).unit_gathers, ElementsAre(4, 2, 2, 4));
  EXPECT_EQ(simulate(plan, bytes).peak_bytes, 2);
}

TEST(MakeSchedule, WhatRegionsInsideRegionsRecomputeStaysForItsBackward) {
  const std::vector<std::int64_t> bytes(3, 1);
  const Trace nested = steps::of("f0 f1 f2 r0 r1 r2 r0 r1 r0 r1 b1 r0 b0");
  EXPECT_THAT(simulate(make_schedule(nested, bytes, {}), bytes).unit_gathers, ElementsAre(2, 2, 2));
}

TEST(MakeSchedule, KeepDistanceDecidesAboutUnitsThatTakeTurns) {
  const Trace turns = steps::of("f0 f1 f2 f0 f1 f2");
  const std::vector<std::int64_t> bytes(3, 1);
  EXPECT_EQ(simulate(make_schedule(turns, bytes, {.keep_distance = 1}), bytes).gathers, 6);
  EXPECT_EQ(simulate(make_schedule(turns, bytes, {.keep_distance = 2}), bytes).gathers, 3);
}

TEST(MakeSchedule, KeepDistanceDoesNotReachFromForwardIntoBackward) {
  const std::vector<std::int64_t> bytes(3, 1);
  const Schedule plan = make_schedule(steps::of("f0 f1 f2 b0"), bytes, {.keep_distance = 9});
  EXPECT_THAT(plan.events[1].evict, ElementsAre(0));
}

TEST(MakeSchedule, KeptUnitsStayToTheEnd) {
  const SimulationResult run = gpt_run({.keep_gathered = {true, false, false, true, false}});
  EXPECT_THAT(run.unit_gathers, ElementsAre(1, 2, 2, 1, 2));
}

TEST(MakeSchedule, TheLimitComesBeforeEveryOtherWish) {
  const SimulationResult run = gpt_run({.keep_for_backward = kAll,
                                        .max_unsharded_bytes = 300,
                                        .keep_gathered = std::vector<bool>(5, true)});
  EXPECT_EQ(run.peak_bytes, 300);
}

TEST(MakeSchedule, UnderALimitTheFarthestNextUseLeaves) {
  // Room for three of five in SHARD_GRAD_OP: the last blocks are used again first and stay.
  const Schedule plan = make_schedule(steps::gpt(kBlocks), kGptBytes,
                                      {.keep_for_backward = kAll, .max_unsharded_bytes = 300});
  EXPECT_THAT(plan.events[3].evict, ElementsAre(1));
  EXPECT_THAT(plan.events[4].evict, ElementsAre(2));
}

TEST(MakeSchedule, PrefetchGathersTheNextUnitOneEventEarly) {
  const Schedule plan = make_schedule(steps::gpt(kBlocks), kGptBytes,
                                      {.forward_prefetch = 1, .backward_prefetch = 1});
  EXPECT_THAT(plan.events[0].gather_ahead, ElementsAre(Ahead{1, false}));
  EXPECT_THAT(plan.events[1].gather_ahead, ElementsAre(Ahead{2, false}));
  const SimulationResult run = simulate(plan, kGptBytes);
  EXPECT_THAT(run.unit_gathers, Each(2));
  EXPECT_EQ(run.peak_bytes, 200);
}

TEST(MakeSchedule, PrefetchStopsWhereTheLimitIs) {
  const SimulationResult run = gpt_run({.max_unsharded_bytes = 200, .forward_prefetch = 3});
  EXPECT_EQ(run.peak_bytes, 200);
}

// Events 0 to 5 are the forward f0 f1 f2 f3 f4 f0, 6 to 10 the backward b0 b4 b3 b2 b1.
TEST(MakeSchedule, ForwardAndBackwardHaveDepthsOfTheirOwn) {
  const Schedule plan = make_schedule(steps::gpt(kBlocks), kGptBytes,
                                      {.forward_prefetch = 2, .backward_prefetch = 1});
  EXPECT_THAT(plan.events[0].gather_ahead, ElementsAre(Ahead{1, false}, Ahead{2, false}));
  EXPECT_THAT(plan.events[6].gather_ahead, IsEmpty());  // 4 came in when f0 ran, two events ahead
  EXPECT_THAT(plan.events[7].gather_ahead, ElementsAre(Ahead{3, false}));
  const Schedule forward_only =
      make_schedule(steps::gpt(kBlocks), kGptBytes, {.forward_prefetch = 1});
  EXPECT_THAT(forward_only.events[8].gather_ahead, IsEmpty());
}

TEST(MakeSchedule, WithoutLimitAllGathersAPhaseIsGatheredAsFarAsTheBudgetAllows) {
  const Schedule plan = make_schedule(steps::gpt(kBlocks), kGptBytes, {.limit_all_gathers = false});
  EXPECT_EQ(plan.events[0].gather_ahead.size(), 4U);
  EXPECT_THAT(plan.events[2].evict, ElementsAre(1));  // resharded after its forward all the same
  EXPECT_EQ(plan.events[6].gather_ahead.size(), 4U);
  EXPECT_EQ(simulate(plan, kGptBytes).peak_bytes, 500);
  const SimulationResult tight = gpt_run({.max_unsharded_bytes = 300, .limit_all_gathers = false});
  EXPECT_EQ(tight.peak_bytes, 300);
  EXPECT_THAT(tight.unit_gathers, Each(testing::Le(2)));
}

TEST(MakeSchedule, SmallUnitsShareACollective) {
  const std::vector<std::int64_t> bytes = {50, 10, 10, 500, 10};
  const Schedule plan =
      make_schedule(steps::of("f0 f1 f2 f3 f4"), bytes, {.gather_bucket_bytes = 70});
  EXPECT_THAT(plan.events[0].gather_ahead, ElementsAre(Ahead{1, true}, Ahead{2, true}));
  EXPECT_THAT(plan.events[3].gather_ahead, IsEmpty());  // larger than the bucket: alone
  const SimulationResult run = simulate(plan, bytes);
  EXPECT_EQ(run.gathers, 5);
  EXPECT_EQ(run.collectives, 3);
}

TEST(MakeSchedule, ABucketStopsWhereTheLimitIs) {
  const std::vector<std::int64_t> bytes = {50, 10, 10};
  const Schedule plan = make_schedule(steps::of("f0 f1 f2"), bytes,
                                      {.max_unsharded_bytes = 60, .gather_bucket_bytes = 1000});
  EXPECT_THAT(plan.events[0].gather_ahead, ElementsAre(Ahead{1, true}));
  EXPECT_EQ(simulate(plan, bytes).peak_bytes, 60);
}

TEST(MakeSchedule, PrefetchedUnitsShareCollectivesToo) {
  const Schedule plan = make_schedule(steps::gpt(kBlocks), kGptBytes,
                                      {.forward_prefetch = 1, .gather_bucket_bytes = 200});
  EXPECT_THAT(plan.events[0].gather_ahead, ElementsAre(Ahead{1, true}));
  EXPECT_THAT(plan.events[1].gather_ahead, ElementsAre(Ahead{2, false}, Ahead{3, true}));
}

TEST(MakeSchedule, AnEmptyTraceIsAnEmptyPlan) {
  const Schedule plan = make_schedule({}, kGptBytes, {});
  EXPECT_THAT(plan.events, IsEmpty());
  EXPECT_THAT(plan.evict_at_end, IsEmpty());
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(MakeScheduleRefuses, AUnitAboveTheLimit) {
  const std::vector<std::int64_t> bytes = {10, 4096};
  const auto plan = [&] { make_schedule(steps::of("f0 f1"), bytes, {.max_unsharded_bytes = 50}); };
  EXPECT_THAT(refusal(plan), AllOf(HasSubstr("unit 1"), HasSubstr("4096 bytes"),
                                   HasSubstr("max_unsharded_bytes is 50")));
  const auto untouched = [&] {
    make_schedule(steps::of("f0"), bytes, {.max_unsharded_bytes = 50});
  };
  EXPECT_EQ(refusal(untouched), "");
}

TEST(MakeScheduleRefuses, UnknownUnits) {
  const std::vector<std::int64_t> bytes = {10};
  EXPECT_THAT(refusal([&] { make_schedule(steps::of("f0 f3"), bytes, {}); }),
              AllOf(HasSubstr("unit 3"), HasSubstr("1 units")));
}

TEST(MakeScheduleRefuses, BadOptions) {
  const std::vector<std::int64_t> bytes = {10};
  const auto with = [&](const ScheduleOptions& options) {
    return refusal([&] { make_schedule({}, bytes, options); });
  };
  EXPECT_THAT(with({.max_unsharded_bytes = -1}), HasSubstr("max_unsharded_bytes is -1"));
  EXPECT_THAT(with({.keep_distance = -2}), HasSubstr("keep_distance is -2"));
  EXPECT_THAT(with({.forward_prefetch = -3}), HasSubstr("forward_prefetch is -3"));
  EXPECT_THAT(with({.backward_prefetch = -4}), HasSubstr("backward_prefetch is -4"));
  EXPECT_THAT(with({.gather_bucket_bytes = -5}), HasSubstr("gather_bucket_bytes is -5"));
  EXPECT_THAT(with({.keep_gathered = {true, true}}), HasSubstr("2 entries for 1 units"));
  EXPECT_THAT(refusal([] { make_schedule({}, std::vector<std::int64_t>{-5}, {}); }),
              HasSubstr("unit 0 is -5"));
}

TEST(SimulateRefuses, PlansThatMakeNoSense) {
  const std::vector<std::int64_t> bytes = {1, 1};
  const auto with = [&](std::vector<Event> events, std::vector<int> end) {
    return refusal([&] { simulate({2, std::move(events), std::move(end)}, bytes); });
  };
  const Touch first{0, Phase::kForward};
  EXPECT_THAT(with({{first, {1}, {}}}, {0}), HasSubstr("event 0: unit 1 is evicted although"));
  EXPECT_THAT(with({{first, {}, {{0, false}}}}, {0}),
              HasSubstr("event 0: unit 0 is gathered although"));
  EXPECT_THAT(with({{first, {}, {}}, {first, {}, {{1, true}}}}, {0, 1}),
              HasSubstr("event 1: unit 1 joins a gather"));
  EXPECT_THAT(with({{first, {}, {}}}, {}), HasSubstr("end: unit 0 is never evicted"));
  EXPECT_THAT(with({{first, {}, {{2, false}}}}, {}), HasSubstr("unit 2 does not exist"));
  EXPECT_EQ(with({{first, {}, {{1, true}}}}, {0, 1}), "");
}

TEST(Simulate, WhatStaysIsGatheredWhereThePlanSaysAndIsThereAtTheEnd) {
  const std::vector<std::int64_t> bytes = {1, 2, 4, 8};
  const Schedule plan = {4,
                         {{{0, Phase::kForward}, {}, {}}, {{1, Phase::kForward}, {0}, {}}},
                         {1},
                         {{1, 2, false}, {1, 3, true}}};
  const SimulationResult result = simulate(plan, bytes);
  EXPECT_EQ(result.peak_bytes, 2 + 4 + 8);
  EXPECT_EQ(result.gathers, 4);
  EXPECT_EQ(result.collectives, 3);
  EXPECT_EQ(result.gathered_bytes, 15);
}

TEST(SimulateRefuses, UnitsThatCannotStay) {
  const std::vector<std::int64_t> bytes = {1, 1, 1};
  const auto with = [&](std::vector<Staying> staying, std::vector<int> end = {0}) {
    return refusal([&] {
      simulate({3, {{{0, Phase::kForward}, {}, {}}}, std::move(end), std::move(staying)}, bytes);
    });
  };
  EXPECT_EQ(with({{0, 1, false}, {1, 2, false}}), "");
  EXPECT_THAT(with({{0, 1, false}}, {0, 1}), HasSubstr("end: unit 1 is evicted although it stays"));
  EXPECT_THAT(with({{1, 0, false}}), HasSubstr("end: unit 0 is gathered although"));
  EXPECT_THAT(with({{0, 1, true}}), HasSubstr("event 0: unit 1 joins a gather"));
  EXPECT_THAT(with({{0, 1, false}, {1, 2, true}}), HasSubstr("end: unit 2 joins a gather"));
  EXPECT_THAT(with({{2, 1, false}}), HasSubstr("unit 1 stays from an event on that does not come"));
  EXPECT_THAT(with({{1, 1, false}, {0, 2, false}}), HasSubstr("unit 2 stays from an event on"));
  EXPECT_THAT(with({{0, 3, false}}), HasSubstr("unit 3 does not exist"));
}

}  // namespace
}  // namespace fullshard::schedule
