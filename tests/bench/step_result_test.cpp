#include "fullshard/bench/step_result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "bench/error_of.h"

namespace fullshard::bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(StepResult, OfAPeerStandsOnOneLineAmongOthers) {
  const StepResult result = parse_step_result(
      "warning: something\n"
      "{\"label\": \"\", \"step_s\": 1.5, \"fwd\": 0.5, \"bwd\": 0.75, \"opt\": 0.25, "
      "\"tok_s\": 1365.3, \"loss\": 5.54321, \"world\": 2}\n"
      "{\"rank\": 0}\nbye\n",
      "the peer");
  EXPECT_DOUBLE_EQ(result.step_seconds, 1.5);
  EXPECT_DOUBLE_EQ(result.forward_seconds, 0.5);
  EXPECT_DOUBLE_EQ(result.backward_seconds, 0.75);
  EXPECT_DOUBLE_EQ(result.optimizer_seconds, 0.25);
  EXPECT_DOUBLE_EQ(result.tokens_per_second, 1365.3);
  EXPECT_DOUBLE_EQ(result.loss, 5.54321);
  EXPECT_FALSE(result.details);
}

TEST(StepResult, OfSeveralTheLastCounts) {
  const std::string output =
      "{\"step_s\": 1, \"tok_s\": 10, \"loss\": 1}\n{\"step_s\": 2, \"tok_s\": 20, \"loss\": 2}";
  EXPECT_DOUBLE_EQ(parse_step_result(output, "x").tokens_per_second, 20);
  EXPECT_DOUBLE_EQ(parse_step_result("\n" + output + "\n\n", "x").tokens_per_second, 20);
}

TEST(StepResult, ThatIsMissingOrIncompleteIsNamed) {
  const auto message = [](std::string_view output) {
    const base::Error error = error_of([&] { parse_step_result(output, "'peer fsdp2'"); });
    EXPECT_EQ(error.code(), base::ErrorCode::kSystem);
    EXPECT_THAT(error.what(), HasSubstr("'peer fsdp2'"));
    return std::string(error.what());
  };
  EXPECT_THAT(message(""), HasSubstr("no line of JSON with tok_s"));
  EXPECT_THAT(message("tok_s 12\n[1, 2]\n{}\n"), HasSubstr("no line of JSON with tok_s"));
  EXPECT_THAT(message("{\"tok_s\": 12, \"loss\": 1}\n"), HasSubstr("step_s"));
  EXPECT_THAT(message("{\"tok_s\": \"fast\", \"step_s\": 1, \"loss\": 1}\n"),
              HasSubstr("cannot be used"));
  EXPECT_THAT(message("{\"tok_s\": 0, \"step_s\": 1, \"loss\": 1}\n"), HasSubstr("above 0"));
}

StepDetails details() {
  return {.losses = {5.5, 5.25, 5.125},
          .step_seconds = {0.3, 0.2, 0.1},
          .grad_norm = 1.75,
          .parameters = 10,
          .torch = "2.11.0",
          .counters = StepCounters{0.125, 0.0625, 1000, 2000, {600, 400}, {{"blocks.0", 0.03125}}}};
}

TEST(StepResult, OfOursSurvivesTheWayFromAnotherProcess) {
  const StepResult sent{.step_seconds = 0.2,
                        .tokens_per_second = 99,
                        .loss = 5.125,
                        .forward_seconds = 0.1,
                        .backward_seconds = 0.05,
                        .optimizer_seconds = 0.05,
                        .details = details()};
  const StepResult read = parse_step_result(to_json(sent) + "\n", "x");
  EXPECT_EQ(to_json(read), to_json(sent));
  EXPECT_EQ(read.details->losses, sent.details->losses);
  EXPECT_EQ(read.details->counters->peak_unreduced_gradient_bytes, 2000);
  EXPECT_EQ(read.details->counters->reduction_seconds, 0.0625);
  EXPECT_EQ(read.details->counters->owned_bytes, (std::vector<std::int64_t>{600, 400}));
  ASSERT_EQ(read.details->counters->units.size(), 1u);
  EXPECT_EQ(read.details->counters->units[0].name, "blocks.0");
  EXPECT_EQ(read.details->counters->units[0].seconds, 0.03125);
}

TEST(StepResult, SameTrainingMayDifferByRounding) {
  StepDetails other = details();
  other.losses[1] *= 1 + 2e-6;
  other.grad_norm *= 1 - 5e-6;
  EXPECT_NEAR(verify_same_training(details(), other, 1e-5), 5e-6, 1e-9);
}

TEST(StepResult, OtherTrainingIsAnErrorThatNamesTheStep) {
  const auto message = [](const StepDetails& other) {
    const base::Error error = error_of([&] { verify_same_training(details(), other, 1e-4); });
    EXPECT_EQ(error.code(), base::ErrorCode::kInternal);
    return std::string(error.what());
  };
  StepDetails other = details();
  other.losses[2] += 0.01;
  EXPECT_THAT(message(other), AllOf(HasSubstr("loss in step 3"), HasSubstr("5.125 plain")));
  other = details();
  other.losses[0] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(message(other), HasSubstr("loss in step 1"));
  other = details();
  other.grad_norm *= 2;  // AdamW would hide it from the losses
  EXPECT_THAT(message(other), HasSubstr("gradient's norm"));
  other = details();
  other.losses.pop_back();
  EXPECT_THAT(message(other), HasSubstr("3 plain and 2 sharded"));
}

}  // namespace
}  // namespace fullshard::bench
