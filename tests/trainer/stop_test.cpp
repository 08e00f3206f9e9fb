#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <sstream>

#include "fullshard/trainer/stop_signals.h"
#include "trainer/small_run.h"

namespace fullshard::testing {
namespace {

/// Says so from the n-th time it is asked on.
std::function<int()> after_asking(int times, int signal) {
  return [times, signal, asked = 0]() mutable { return ++asked >= times ? signal : 0; };
}

TEST(Stop, OneRanksWordStopsAllAfterTheSameStep) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  config.metrics.jsonl = folder.path("steps.jsonl");
  std::ostringstream out;
  const auto results = run_ranks(4, [&](comm::World& world) {
    trainer::RunContext context{.out = &out};
    if (world.rank() == 2) context.stop_signal = after_asking(6, SIGTERM);
    return trainer::train(config, world, context);
  });
  for (const trainer::TrainResult& result : results) {
    EXPECT_EQ(result.steps, 6);
    EXPECT_EQ(result.losses.size(), 6U);
    EXPECT_EQ(result.stop_signal, SIGTERM);
    EXPECT_EQ(result.generated, "");
  }
  EXPECT_THAT(out.str(), ::testing::HasSubstr("stopped by SIGTERM after step 6 of 20\n"));
  const std::string lines = read_file(config.metrics.jsonl);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 6);
}

TEST(Stop, WorksInValidation) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  config.validation.freq = 4;
  // Asked once in each of four steps, then before each batch of the validation.
  const auto results = run_ranks(2, [&](comm::World& world) {
    trainer::RunContext context;
    if (world.rank() == 1) context.stop_signal = after_asking(6, SIGINT);
    return trainer::train(config, world, context);
  });
  for (const trainer::TrainResult& result : results) {
    EXPECT_EQ(result.steps, 4);
    EXPECT_EQ(result.stop_signal, SIGINT);
    EXPECT_FALSE(result.validation_loss);
  }
}

TEST(Stop, WorksInGeneration) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  config.training.steps = 3;
  config.validation.enable = false;
  config.generation.bytes = 1'000'000;
  const auto results = run_ranks(2, [&](comm::World& world) {
    trainer::RunContext context;
    if (world.rank() == 1) context.stop_signal = after_asking(5, SIGINT);
    return trainer::train(config, world, context);
  });
  for (const trainer::TrainResult& result : results) {
    EXPECT_EQ(result.steps, 3);
    EXPECT_EQ(result.stop_signal, SIGINT);
    EXPECT_EQ(result.generated.size(), 32U);
    EXPECT_EQ(result.generated, results[0].generated);
  }
}

TEST(Stop, ChangesNothingInTheStepsBefore) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  config.validation.freq = 0;
  const trainer::TrainResult whole = run_small(config, 1);
  const trainer::TrainResult stopped =
      run_small(config, 1, {.stop_signal = after_asking(10, SIGINT)});
  ASSERT_EQ(stopped.losses.size(), 10U);
  EXPECT_TRUE(std::equal(stopped.losses.begin(), stopped.losses.end(), whole.losses.begin()));
}

TEST(StopSignals, NoteTheSignalInsteadOfDying) {
  const trainer::StopSignals signals;
  EXPECT_EQ(signals.received(), 0);
  ASSERT_EQ(std::raise(SIGTERM), 0);
  EXPECT_EQ(signals.received(), SIGTERM);
}

TEST(StopSignals, LetTheSecondOneKill) {
  EXPECT_EXIT(
      {
        const trainer::StopSignals signals;
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      ::testing::KilledBySignal(SIGINT), "");
}

TEST(StopSignals, RestoreWhatWasBefore) {
  EXPECT_EXIT(
      {
        { const trainer::StopSignals signals; }
        std::raise(SIGHUP);
      },
      ::testing::KilledBySignal(SIGHUP), "");
}

TEST(StopSignals, LeaveIgnoredSignalsAlone) {
  struct sigaction before {};
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGHUP, &ignore, &before);
  {
    const trainer::StopSignals signals;
    std::raise(SIGHUP);
    EXPECT_EQ(signals.received(), 0);
  }
  sigaction(SIGHUP, &before, nullptr);
}

TEST(StopSignals, HaveTheExitCodesOfShells) {
  EXPECT_EQ(trainer::exit_code_of(SIGINT), 130);
  EXPECT_EQ(trainer::exit_code_of(SIGTERM), 143);
  EXPECT_EQ(trainer::exit_code_of(SIGHUP), 143);
}

}  // namespace
}  // namespace fullshard::testing
