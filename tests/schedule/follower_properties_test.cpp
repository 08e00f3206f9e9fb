#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "fullshard/schedule/simulate.h"
#include "schedule/arbitrary.h"
#include "schedule/engine_model.h"

namespace fullshard::schedule {
namespace {

Trace forward_part(const Trace& trace) {
  Trace part;
  for (const Touch& touch : trace.events()) {
    if (touch.phase == Phase::kForward) part.add(touch);
  }
  return part;
}

// Now and then a unit is skipped, another one slips in, or the step ends early.
Trace disturbed(const Trace& trace, int units) {
  Trace out;
  for (const Touch& touch : trace.events()) {
    const int luck = arbitrary::between(0, 30);
    if (luck == 0) break;
    if (luck == 1) out.add({arbitrary::between(0, units), touch.phase});
    if (luck != 2) out.add(touch);
  }
  return out;
}

Trace any_step(const Trace& usual, int units) {
  switch (arbitrary::between(0, 4)) {
    case 0: return usual;
    case 1: return forward_part(usual);
    case 2: return disturbed(usual, units);
    default: return arbitrary::trace(units);
  }
}

// The engine model throws when a decision cannot be carried out, which fails the property.
RC_GTEST_PROP(FollowerProperty, DecisionsCanAlwaysBeCarriedOut, ()) {
  const auto bytes = arbitrary::unit_bytes();
  const auto options = arbitrary::options(bytes);
  const int units = static_cast<int>(bytes.size());
  const Trace usual = arbitrary::model_trace(units);
  Follower follower(bytes, options);
  EngineModel engine(follower);
  for (auto steps = arbitrary::between(1, 8); steps > 0; --steps) {
    RC_ASSERT(engine.run(any_step(usual, units)) <= 1);
    RC_ASSERT(follower.resident_bytes() == 0);
    if (options.max_unsharded_bytes > 0) {
      RC_ASSERT(engine.peak_bytes() <= options.max_unsharded_bytes);
    }
  }
}

RC_GTEST_PROP(FollowerProperty, ResidencyIsWhatTheDecisionsImply, ()) {
  const auto bytes = arbitrary::unit_bytes();
  const int units = static_cast<int>(bytes.size());
  Follower follower(bytes, arbitrary::options(bytes));
  EngineModel engine(follower);
  const Trace usual = arbitrary::trace(units);
  for (const Trace& step : {usual, disturbed(usual, units)}) {
    for (const Touch& touch : step.events()) {
      engine.touch(touch);
      for (int unit = 0; unit < units; ++unit) {
        RC_ASSERT(follower.resident(unit) == engine.resident().contains(unit));
      }
    }
    engine.end_step();
  }
}

RC_GTEST_PROP(FollowerProperty, AFollowedStepDoesExactlyWhatTheSimulatorSays, ()) {
  const auto bytes = arbitrary::unit_bytes();
  const auto options = arbitrary::options(bytes);
  const Trace trace = arbitrary::trace(static_cast<int>(bytes.size()));
  Follower follower(bytes, options);
  EngineModel engine(follower);
  engine.run(trace);
  RC_ASSERT(engine.run(trace) == 0);
  RC_ASSERT(follower.deviations() == 0);
  const auto expected = simulate(make_schedule(trace, bytes, options), bytes);
  RC_ASSERT(engine.gathers() == expected.gathers);
  RC_ASSERT(engine.collectives() == expected.collectives);
  RC_ASSERT(engine.peak_bytes() == expected.peak_bytes);
}

RC_GTEST_PROP(FollowerProperty, AnyStepIsFollowedWhenItComesTwice, ()) {
  const auto bytes = arbitrary::unit_bytes();
  const int units = static_cast<int>(bytes.size());
  Follower follower(bytes, arbitrary::options(bytes));
  EngineModel engine(follower);
  const Trace usual = arbitrary::model_trace(units);
  engine.run(usual);
  const Trace changed = disturbed(usual, units);
  engine.run(changed);
  const std::int64_t before = follower.deviations();
  engine.run(changed);
  RC_ASSERT(follower.deviations() == before);
}

RC_GTEST_PROP(FollowerProperty, ByDemandAtMostOneOtherUnitIsResident, ()) {
  const auto bytes = arbitrary::unit_bytes();
  ScheduleOptions options = arbitrary::options(bytes);
  options.keep_gathered.clear();
  options.keep_for_backward.clear();
  Follower follower(bytes, options);
  EngineModel engine(follower);
  engine.run(arbitrary::trace(static_cast<int>(bytes.size())));
  RC_ASSERT(engine.most() <= 2U);
}

RC_GTEST_PROP(FollowerProperty, EvaluationBetweenTrainingStepsLeavesTheirScheduleAlone, ()) {
  const auto bytes = arbitrary::unit_bytes();
  const Trace training = arbitrary::model_trace(static_cast<int>(bytes.size()));
  const Trace evaluation = forward_part(training);
  RC_PRE(training.size() > evaluation.size());
  Follower follower(bytes, arbitrary::options(bytes));
  EngineModel engine(follower);
  engine.run(training);
  const Schedule before = *follower.training_schedule();
  for (int round = 0; round < 3; ++round) {
    engine.run(evaluation);
    RC_ASSERT(engine.run(training) == 0);
  }
  RC_ASSERT(*follower.training_schedule() == before);
}

}  // namespace
}  // namespace fullshard::schedule
