#include "fullshard/schedule/follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fullshard/base/error.h"
#include "fullshard/schedule/simulate.h"
#include "schedule/engine_model.h"
#include "schedule/steps.h"

namespace fullshard::schedule {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kBlocks = 4;
const std::vector<std::int64_t> kBytes(kBlocks + 1, 100);

class FollowerTest : public testing::Test {
 protected:
  explicit FollowerTest(const ScheduleOptions& options = {}) : follower_(kBytes, options) {}

  const Trace training_ = steps::gpt(kBlocks);
  const Trace evaluation_ = steps::gpt_forward(kBlocks);
  Follower follower_;
  EngineModel engine_{follower_};
};

class ShardGradOpFollowerTest : public FollowerTest {
 protected:
  ShardGradOpFollowerTest()
      : FollowerTest({.keep_for_backward = std::vector<bool>(kBlocks + 1, true)}) {}
};

TEST_F(FollowerTest, TheFirstStepIsTracedWithAtMostOneUnitBesidesTheTouched) {
  EXPECT_EQ(engine_.run(training_), 0);
  EXPECT_EQ(engine_.most(), 2U);
  ASSERT_NE(follower_.training_schedule(), nullptr);
  EXPECT_EQ(*follower_.training_schedule(), make_schedule(training_, kBytes, {}));
}

TEST_F(FollowerTest, LaterStepsFollowTheSchedule) {
  engine_.run(training_);
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(engine_.run(training_), 0);
    EXPECT_EQ(engine_.gathers(), 10);
    EXPECT_EQ(engine_.most(), 1U);
  }
  EXPECT_EQ(follower_.deviations(), 0);
}

TEST_F(FollowerTest, ADeviationGoesOnByDemandAndIsTheNextStepsSchedule) {
  const Trace changed = steps::of("f0 f1 f3 f2 f0 b0 b2 b3 b1");
  engine_.run(training_);
  EXPECT_EQ(engine_.run(changed), 1);
  EXPECT_LE(engine_.most(), 2U);
  EXPECT_EQ(follower_.deviations(), 1);
  EXPECT_EQ(*follower_.training_schedule(), make_schedule(changed, kBytes, {}));
  EXPECT_EQ(engine_.run(changed), 0);
}

TEST_F(FollowerTest, SkippingAUnitIsADeviation) {
  engine_.run(training_);
  EXPECT_EQ(engine_.run(steps::of("f0 f1 f3 f4 f0 b0 b4 b3 b1")), 1);
}

TEST_F(FollowerTest, TheDecisionSaysWhichTouchDeviated) {
  engine_.run(training_);
  EXPECT_FALSE(engine_.touch({0, Phase::kForward}));
  EXPECT_TRUE(follower_.following());
  EXPECT_TRUE(engine_.touch({3, Phase::kForward}));
  EXPECT_FALSE(follower_.following());
  EXPECT_FALSE(engine_.touch({4, Phase::kForward}));
}

TEST_F(FollowerTest, TouchesBeyondTheEndOfTheScheduleAreADeviation) {
  engine_.run(training_);
  Trace longer = training_;
  longer.add({0, Phase::kBackward});
  EXPECT_EQ(engine_.run(longer), 1);
  EXPECT_EQ(engine_.run(longer), 0);
}

TEST_F(FollowerTest, AStepCutShortIsPlannedAnew) {
  const Trace half = steps::of("f0 f1 f2 f3 f4 f0 b0 b4");
  engine_.run(training_);
  EXPECT_EQ(engine_.run(half), 0);
  EXPECT_EQ(follower_.deviations(), 1);
  EXPECT_EQ(engine_.run(half), 0);
  EXPECT_EQ(follower_.deviations(), 1);
  EXPECT_EQ(*follower_.training_schedule(), make_schedule(half, kBytes, {}));
}

TEST_F(FollowerTest, EvaluationKeepsTheTrainingSchedule) {
  engine_.run(training_);
  const Schedule before = *follower_.training_schedule();
  EXPECT_EQ(engine_.run(evaluation_), 0);
  EXPECT_EQ(*follower_.training_schedule(), before);
  EXPECT_EQ(engine_.run(training_), 0);
  EXPECT_EQ(engine_.run(evaluation_), 0);
  EXPECT_EQ(follower_.deviations(), 1);  // only the first evaluation was news
  EXPECT_EQ(*follower_.forward_only_schedule(), make_schedule(evaluation_, kBytes, {}));
}

TEST_F(ShardGradOpFollowerTest, ChangesOverWhenTheTouchesFitTheOtherPlan) {
  const Trace other = steps::of("f0 f1 f3");
  engine_.run(training_);
  engine_.run(other);
  const std::int64_t before = follower_.deviations();
  EXPECT_EQ(engine_.run(other), 0);
  EXPECT_EQ(follower_.deviations(), before);
}

TEST_F(ShardGradOpFollowerTest, AUnitLeavesAfterItsLastTouchInBackward) {
  engine_.run(training_);
  for (const Touch& touch : steps::of("f0 f1 f2 f3 f4 f0 b0 b4 b3 b2").events()) {
    engine_.touch(touch);
  }
  EXPECT_THAT(engine_.resident(), testing::ElementsAre(1, 2));
}

TEST_F(ShardGradOpFollowerTest, AChangeOverEvictsWhatTheNewPlanWouldNotHave) {
  const Trace other = steps::of("f0 f1 f2 f3 f1 f2");
  engine_.run(training_);
  engine_.run(other);
  for (const Touch& touch : steps::of("f0 f1 f2 f3").events()) engine_.touch(touch);
  EXPECT_EQ(engine_.resident().size(), 4U);
  EXPECT_FALSE(engine_.touch({1, Phase::kForward}));
  EXPECT_TRUE(follower_.following());
  EXPECT_LE(engine_.resident().size(), 2U);
}

TEST_F(FollowerTest, ThePlanChangedToMustFitFromTheStart) {
  engine_.run(steps::of("f0 f1 f2 b2 b1"));
  engine_.run(steps::of("f0 f3 f4"));
  engine_.touch({0, Phase::kForward});
  engine_.touch({1, Phase::kForward});
  EXPECT_TRUE(engine_.touch({4, Phase::kForward}));
  EXPECT_FALSE(follower_.following());
}

TEST_F(FollowerTest, AForwardOnlyPassMayComeFirst) {
  EXPECT_EQ(engine_.run(evaluation_), 0);
  EXPECT_EQ(follower_.training_schedule(), nullptr);
  engine_.run(training_);
  EXPECT_NE(follower_.training_schedule(), nullptr);
  EXPECT_EQ(engine_.run(training_), 0);
}

TEST_F(FollowerTest, RepeatedTouchesAskForNothing) {
  engine_.touch({1, Phase::kForward});
  const Decision again = follower_.on_touch(1, Phase::kForward);
  EXPECT_FALSE(again.deviated);
  EXPECT_THAT(again.evict, IsEmpty());
  EXPECT_THAT(again.gather_ahead, IsEmpty());
}

TEST_F(FollowerTest, EndingAStepWithoutTouchesChangesNothing) {
  engine_.run(training_);
  const Schedule before = *follower_.training_schedule();
  EXPECT_THAT(follower_.end_step(), IsEmpty());
  EXPECT_EQ(*follower_.training_schedule(), before);
  EXPECT_EQ(follower_.deviations(), 0);
}

TEST_F(FollowerTest, ByDemandTheUnitUsedLongestAgoLeaves) {
  for (const Touch& touch : steps::of("f0 f1 f2").events()) engine_.touch(touch);
  EXPECT_THAT(engine_.resident(), testing::ElementsAre(1, 2));
  for (const Touch& touch : steps::of("f1 f3").events()) engine_.touch(touch);
  EXPECT_THAT(engine_.resident(), testing::ElementsAre(1, 3));
}

TEST(Follower, ByDemandKeepsTheKeptUnitsToo) {
  Follower follower(kBytes, {.keep_gathered = {true, true, false, false, false}});
  EngineModel engine(follower);
  for (const Touch& touch : steps::of("f0 f1 f2 f3").events()) engine.touch(touch);
  EXPECT_THAT(engine.resident(), testing::ElementsAre(0, 1, 2, 3));
}

TEST(Follower, ByDemandTheLimitComesBeforeTheKeptUnits) {
  Follower follower(kBytes, {.max_unsharded_bytes = 200, .keep_gathered = {1, 1, 0, 0, 0}});
  EngineModel engine(follower);
  engine.run(steps::gpt(kBlocks));
  EXPECT_EQ(engine.peak_bytes(), 200);
}

TEST(Follower, PrefetchesOnceThereIsASchedule) {
  Follower follower(kBytes, {.forward_prefetch = 1});
  EngineModel engine(follower);
  engine.run(steps::gpt(kBlocks));
  EXPECT_THAT(follower.on_touch(0, Phase::kForward).gather_ahead,
              testing::ElementsAre(Ahead{1, false}));
}

TEST(Follower, GathersAheadInOneGoAsTheScheduleSays) {
  Follower follower(kBytes, {.gather_bucket_bytes = 200});
  EngineModel engine(follower);
  engine.run(steps::gpt(kBlocks));
  EXPECT_THAT(follower.on_touch(0, Phase::kForward).gather_ahead,
              testing::ElementsAre(Ahead{1, true}));
  EXPECT_THAT(follower.on_touch(1, Phase::kForward).gather_ahead, IsEmpty());
  EXPECT_THAT(follower.on_touch(2, Phase::kForward).gather_ahead,
              testing::ElementsAre(Ahead{3, true}));
}

TEST(FollowerRefuses, AUnitAboveTheLimit) {
  try {
    Follower({10, 60}, {.max_unsharded_bytes = 50});
    FAIL() << "a unit above the limit was accepted";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("unit 1"), HasSubstr("60"), HasSubstr("50")));
  }
}

TEST(FollowerRefuses, UnknownUnits) {
  Follower follower(kBytes, {});
  EXPECT_THROW(follower.on_touch(-1, Phase::kForward), base::Error);
  EXPECT_THROW(follower.on_touch(5, Phase::kForward), base::Error);
  EXPECT_THAT(follower.end_step(), IsEmpty());
}

TEST(FollowerRefuses, UnitsOfOneOperatorThatDoNotFit) {
  Follower follower(kBytes, {.max_unsharded_bytes = 250});
  follower.on_touch({0, Phase::kForward});
  follower.on_touch({1, Phase::kForward, 1});
  try {
    follower.on_touch({2, Phase::kForward, 2});
    FAIL() << "three units of 100 bytes under a limit of 250";
  } catch (const base::Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("unit 2"), HasSubstr("300"), HasSubstr("250")));
  }
}

TEST_F(FollowerTest, UnitsOfOneOperatorStayTogetherByDemandAndByPlan) {
  const Trace trace = steps::of("f0 f1 f2+1 f3+2 f4 b4");
  for (int step = 0; step < 2; ++step) {
    for (const Touch& touch : steps::of("f0 f1 f2+1 f3+2").events()) engine_.touch(touch);
    EXPECT_THAT(engine_.resident(), testing::ElementsAre(1, 2, 3));
    for (const Touch& touch : steps::of("f4 b4").events()) engine_.touch(touch);
    engine_.end_step();
  }
  EXPECT_EQ(follower_.deviations(), 0);
  EXPECT_EQ(*follower_.training_schedule(), make_schedule(trace, kBytes, {}));
}

// Carries out what begins_anew() says, as the engine does.
void run_forwards(Follower& follower, EngineModel& engine, const Trace& trace, int times) {
  for (int i = 0; i < times; ++i) {
    for (const Touch& touch : trace.events()) {
      if (follower.begins_anew(touch)) engine.end_step();
      engine.touch(touch);
    }
  }
}

TEST_F(FollowerTest, ForwardsThatNothingEndsBecomeStepsAtLast) {
  run_forwards(follower_, engine_, steps::of("f0 f1 f2 f3"), 10'000);
  ASSERT_NE(follower_.forward_only_schedule(), nullptr);
  EXPECT_LE(follower_.forward_only_schedule()->events.size(), 1024U);
  EXPECT_EQ(follower_.deviations(), 0);
}

TEST_F(FollowerTest, ForwardsThatNothingEndsFollowTheirPlan) {
  engine_.run(steps::of("f0 f1 f2 f3"));
  run_forwards(follower_, engine_, steps::of("f0 f1 f2 f3"), 100);
  EXPECT_EQ(follower_.forward_only_schedule()->events.size(), 4U);
  EXPECT_EQ(follower_.deviations(), 0);
}

// An evaluation with gradients right before a training step.
TEST_F(FollowerTest, AForwardKnownAsAStepLeavesTheTrainingStepItsPlan) {
  const Trace evaluation = steps::of("f0 f1 f2 f3");
  const Trace training = steps::of("f0 f1 f2 f3 b3 b2 b1 b0");
  engine_.run(evaluation);
  engine_.run(training);
  const Schedule before = *follower_.training_schedule();
  const std::int64_t deviations = follower_.deviations();
  for (int step = 0; step < 3; ++step) {
    run_forwards(follower_, engine_, evaluation, 1);
    run_forwards(follower_, engine_, training, 1);
    engine_.end_step();
  }
  EXPECT_EQ(*follower_.training_schedule(), before);
  EXPECT_EQ(follower_.deviations(), deviations);
}

// f0 f1, then what stays, b1 b0.
class StayingFollowerTest : public testing::Test {
 protected:
  void run_step(const std::vector<Ahead>& gathered, const std::string& between = "") {
    engine_.touch({0, Phase::kForward});
    engine_.touch({1, Phase::kForward});
    follower_.on_staying(Phase::kForward, gathered);
    for (const Touch& touch : steps::of(between + " b1 b0").events()) engine_.touch(touch);
    follower_.on_staying(Phase::kBackward, {});
    engine_.end_step();
  }

  const std::vector<Ahead> gathered_ = {{3, false}, {4, true}};
  const std::vector<Staying> staying_ = {{2, 3, false}, {2, 4, true}};
  Follower follower_{kBytes, {}};
  EngineModel engine_{follower_};
};

TEST_F(StayingFollowerTest, ThePlanHasWhatStaysWhereItWasGatheredLast) {
  run_step(gathered_);
  EXPECT_EQ(follower_.training_schedule()->staying, staying_);
  run_step({});  // still there: a second step before the update
  EXPECT_EQ(follower_.training_schedule()->staying, staying_);
  run_step({{4, false}});
  EXPECT_EQ(follower_.training_schedule()->staying, (std::vector<Staying>{{2, 4, false}}));
  EXPECT_EQ(follower_.deviations(), 0);
}

TEST_F(StayingFollowerTest, WhatStaysIsInThePlanAfterADeviationToo) {
  run_step(gathered_);
  run_step(gathered_, "f2 b2");
  EXPECT_EQ(follower_.deviations(), 1);
  EXPECT_EQ(follower_.training_schedule()->events.size(), 6U);
  EXPECT_EQ(follower_.training_schedule()->staying, staying_);
  engine_.run(steps::of("b0"));
  EXPECT_EQ(follower_.training_schedule()->staying,
            (std::vector<Staying>{{1, 3, false}, {1, 4, true}}));
}

TEST_F(StayingFollowerTest, AStepOfUnitsThatStayOnlyHasAPlan) {
  for (int step = 0; step < 2; ++step) {
    follower_.on_staying(Phase::kForward, gathered_);
    follower_.on_staying(Phase::kBackward, {});
    EXPECT_TRUE(follower_.end_step().empty());
    EXPECT_EQ(follower_.forward_only_schedule(), nullptr);
    ASSERT_NE(follower_.training_schedule(), nullptr);
    EXPECT_EQ(*follower_.training_schedule(),
              (Schedule{kBlocks + 1, {}, {}, {{0, 3, false}, {0, 4, true}}}));
  }
  run_step({});  // nothing to deviate from
  EXPECT_EQ(follower_.deviations(), 0);
}

TEST_F(FollowerTest, ForwardsThatABackwardFollowsAreOneStep) {
  const Trace twice = steps::of("f0 f1 f2 f0 f1 f2 b2 b1 b0 b2 b1 b0");
  for (int step = 0; step < 3; ++step) {
    for (const Touch& touch : twice.events()) {
      EXPECT_FALSE(follower_.begins_anew(touch));
      engine_.touch(touch);
    }
    engine_.end_step();
  }
  EXPECT_EQ(follower_.deviations(), 0);
}

}  // namespace
}  // namespace fullshard::schedule
