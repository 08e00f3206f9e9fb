#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fullshard/base/error.h"
#include "trainer/small_run.h"

namespace fullshard::testing {
namespace {

using base::ErrorCode;

/// Trains with a configuration that may differ by rank, and expects the error that started it all.
void expect_failure(int world, const std::function<config::TrainConfig(int)>& config_of_rank,
                    ErrorCode code, const std::vector<std::string>& parts) {
  try {
    run_ranks(world,
              [&](comm::World& rank) { return trainer::train(config_of_rank(rank.rank()), rank); });
    FAIL() << "expected an error that speaks of " << parts.front();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& part : parts) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
    }
  }
}

class Errors : public ::testing::Test {
 protected:
  Errors() : config(small_config(folder)) {}

  void expect_on_all(int world, ErrorCode code, const std::vector<std::string>& parts) {
    expect_failure(
        world, [&](int) { return config; }, code, parts);
  }

  const TemporaryFolder folder;
  config::TrainConfig config;
};

TEST_F(Errors, NameTextThatCannotBeRead) {
  config.data.path = folder.path("absent.txt");
  expect_on_all(3, ErrorCode::kFile, {"absent.txt", "No such file"});
}

TEST_F(Errors, C5_OfOneRankEndAll) {
  expect_failure(4,
                 [&](int rank) {
                   config::TrainConfig own = config;
                   if (rank == 2) own.data.path = folder.path("absent.txt");
                   return own;
                 },
                 ErrorCode::kFile, {"absent.txt"});
}

TEST_F(Errors, NameAMetricsFileThatCannotBeMade) {
  config.metrics.jsonl = folder.path("no/such/folder/steps.jsonl");
  expect_on_all(2, ErrorCode::kFile, {"metrics.jsonl", "no/such/folder", "No such file"});
}

TEST_F(Errors, NameAMetricsFileThatCannotBeWritten) {
  config.metrics.jsonl = "/dev/full";
  expect_on_all(2, ErrorCode::kFile, {"metrics.jsonl", "/dev/full", "No space left"});
}

TEST_F(Errors, NameTheFieldsOfATextThatIsTooShort) {
  config.data.path = folder.write("short", "only this");
  expect_on_all(2, ErrorCode::kConfiguration, {"training.seq_len (16)", "takes 17"});
}

TEST_F(Errors, NameTheFieldsOfAValidationTextThatIsTooShort) {
  config.data.validation_fraction = 0.001;
  expect_on_all(2, ErrorCode::kConfiguration,
                {"data.validation_fraction (0.001)", "for validation", "validation.enable"});
  config.validation.enable = false;
  config.training.steps = 1;
  EXPECT_EQ(run_small(config, 2).steps, 1);
}

TEST_F(Errors, NameAPatternWithoutAParameter) {
  config.optimizer.no_decay = {"*.bias", "*nrom*"};
  expect_on_all(2, ErrorCode::kConfiguration, {"\"*nrom*\" matches no parameter"});
}

TEST_F(Errors, SayThatTrainingDivergedAndWhatToChange) {
  config.optimizer.lr = 1e30;
  config.lr_scheduler.warmup_steps = 0;
  expect_on_all(2, ErrorCode::kInvalidArgument, {"step ", "diverged", "optimizer.lr (1e+30)"});
}

TEST_F(Errors, LeaveTheProcessAbleToTrain) {
  config.data.path = folder.path("absent.txt");
  expect_on_all(2, ErrorCode::kFile, {"absent.txt"});
  EXPECT_EQ(run_small(small_config(folder), 2).steps, 20);
}

}  // namespace
}  // namespace fullshard::testing
