#include "fullshard/optim/warmup_cosine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "fullshard/base/error.h"

namespace fullshard::optim {
namespace {

using testing::HasSubstr;

std::string error_of(const WarmupCosine& schedule) {
  try {
    schedule.validate();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kConfiguration);
    return error.what();
  }
  return "no error";
}

TEST(WarmupCosine, RisesByEqualStepsToTheBase) {
  const WarmupCosine schedule{.base_lr = 8, .warmup_steps = 3, .total_steps = 10};
  EXPECT_DOUBLE_EQ(schedule.lr(0), 2);
  EXPECT_DOUBLE_EQ(schedule.lr(1), 4);
  EXPECT_DOUBLE_EQ(schedule.lr(2), 6);
  EXPECT_DOUBLE_EQ(schedule.lr(3), 8);
}

TEST(WarmupCosine, FallsAlongHalfACosineToTheLastStep) {
  const WarmupCosine schedule{
      .base_lr = 2, .warmup_steps = 4, .total_steps = 13, .min_lr_ratio = 0.25};
  EXPECT_DOUBLE_EQ(schedule.lr(4), 2);
  EXPECT_DOUBLE_EQ(schedule.lr(8), 1.25);  // half way: the mean of 2 and 0.5
  EXPECT_DOUBLE_EQ(schedule.lr(6), 0.5 + 1.5 * 0.5 * (1 + std::sqrt(0.5)));
  EXPECT_DOUBLE_EQ(schedule.lr(12), 0.5);
}

TEST(WarmupCosine, StaysAtTheFloorPastTheEnd) {
  const WarmupCosine schedule{
      .base_lr = 2, .warmup_steps = 4, .total_steps = 13, .min_lr_ratio = 0.25};
  EXPECT_DOUBLE_EQ(schedule.lr(13), 0.5);
  EXPECT_DOUBLE_EQ(schedule.lr(1000), 0.5);
}

TEST(WarmupCosine, WithoutWarmupStartsAtTheBase) {
  const WarmupCosine schedule{.base_lr = 3, .warmup_steps = 0, .total_steps = 5, .min_lr_ratio = 0};
  EXPECT_DOUBLE_EQ(schedule.lr(0), 3);
  EXPECT_DOUBLE_EQ(schedule.lr(2), 1.5);
  EXPECT_NEAR(schedule.lr(4), 0, 1e-15);
}

TEST(WarmupCosine, NeverLeavesItsRange) {
  for (std::int64_t total = 1; total <= 12; ++total) {
    for (std::int64_t warmup = 0; warmup < total; ++warmup) {
      const WarmupCosine schedule{1.0, warmup, total, 0.1};
      schedule.validate();
      for (std::int64_t step = 0; step < total + 3; ++step) {
        EXPECT_GT(schedule.lr(step), 0) << total << ' ' << warmup << ' ' << step;
        EXPECT_LE(schedule.lr(step), 1) << total << ' ' << warmup << ' ' << step;
        if (step > warmup) EXPECT_LE(schedule.lr(step), schedule.lr(step - 1));
      }
      EXPECT_DOUBLE_EQ(schedule.lr(warmup), 1);
    }
  }
}

TEST(WarmupCosine, NamesWhatCannotBeUsed) {
  EXPECT_THAT(error_of({1, 5, 5, 0}),
              HasSubstr("warmup_steps must be from 0 to total_steps - 1 = 4"));
  EXPECT_THAT(error_of({1, -1, 5, 0}), HasSubstr("not -1"));
  EXPECT_THAT(error_of({1, 0, 0, 0}), HasSubstr("total_steps"));
  EXPECT_THAT(error_of({-1, 0, 5, 0}), HasSubstr("base_lr"));
  EXPECT_THAT(error_of({std::numeric_limits<double>::infinity(), 0, 5, 0}), HasSubstr("finite"));
  EXPECT_THAT(error_of({1, 0, 5, 1.5}), HasSubstr("min_lr_ratio must be from 0 to 1, not 1.5"));
}

}  // namespace
}  // namespace fullshard::optim
