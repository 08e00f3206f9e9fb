#include "fullshard/bench/step_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/error_of.h"

namespace fullshard::bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(StepSpec, PlainTrainingHasTheSameCoresInOneProcess) {
  StepSpec spec{.ranks = 3, .threads = 2};
  EXPECT_EQ(process_count(spec), 3);
  EXPECT_EQ(threads_per_process(spec), 2);
  spec.sharded = false;
  EXPECT_EQ(process_count(spec), 1);
  EXPECT_EQ(threads_per_process(spec), 6);
}

TEST(StepSpec, SurvivesTheWayToAnotherProcess) {
  const StepSpec spec{.shape = {"vit", 1, 2, 3, 4, 5, 6, 7, 8, 9},
                      .sharded = false,
                      .ranks = 7,
                      .threads = 8,
                      .strategy = "NO_SHARD",
                      .units = "1000",
                      .atom = "row",
                      .recompute = 1,
                      .steps = 9,
                      .memory_gate = "/a folder/\"x\""};
  const StepSpec read = parse_step_spec(to_json(spec));
  EXPECT_EQ(to_json(read), to_json(spec));
  EXPECT_EQ(read.shape.model, "vit");
  EXPECT_EQ(read.shape.batch, 9);
  EXPECT_EQ(read.memory_gate, spec.memory_gate);
  EXPECT_EQ(error_of([] { parse_step_spec("{}"); }).code(), base::ErrorCode::kConfiguration);
}

TEST(StepSpec, UnusableValuesAreNamed) {
  const auto message = [](const StepSpec& spec) {
    const base::Error error = error_of([&] { validate(spec); });
    EXPECT_EQ(error.code(), base::ErrorCode::kUsage);
    return std::string(error.what());
  };
  EXPECT_THAT(message({.shape = {.layers = 0}}), HasSubstr("--layers: found 0"));
  EXPECT_THAT(message({.shape = {.dim = 64, .heads = 3}}),
              AllOf(HasSubstr("--heads: found 3"), HasSubstr("--dim 64")));
  EXPECT_THAT(message({.ranks = -1}), HasSubstr("--ranks: found -1"));
  EXPECT_THAT(message({.steps = 1}), HasSubstr("--steps: found 1"));
  EXPECT_THAT(message({.strategy = "FULL"}),
              HasSubstr("FULL_SHARD, SHARD_GRAD_OP, SHARD_OPTIMIZER_ONLY, NO_SHARD"));
  EXPECT_THAT(
      message({.units = "layers"}),
      HasSubstr("--units: found \"layers\"; expected automatic, blocks, whole or a number"));
  EXPECT_THAT(message({.units = "-5"}), HasSubstr("--units: found \"-5\""));
  EXPECT_THAT(message({.atom = "column"}), HasSubstr("element, row, parameter, unit, heads"));
  EXPECT_THAT(message({.shape = named_shape("resnet", "18"), .atom = "heads"}),
              HasSubstr("a resnet has no heads"));
  EXPECT_NO_THROW(validate(StepSpec{.atom = "heads"}));
  EXPECT_THAT(message({.shape = {.layers = 4}, .recompute = 5}),
              HasSubstr("--recompute: found 5; expected an integer from 0 to 4"));
  EXPECT_THAT(message({.shape = named_shape("bert", "small"), .recompute = 1}),
              HasSubstr("--recompute: found 1; expected 0 for a bert"));
  EXPECT_NO_THROW(validate(StepSpec{}));
  EXPECT_NO_THROW(validate(StepSpec{.units = "5000"}));
}

}  // namespace
}  // namespace fullshard::bench
