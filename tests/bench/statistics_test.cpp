#include "fullshard/bench/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/error_of.h"

namespace fullshard::bench {
namespace {

using ::testing::ElementsAre;

TEST(Statistics, MedianIsTheMiddleOfTheSortedValues) {
  EXPECT_DOUBLE_EQ(median(std::vector{5.0, 1.0, 9.0}), 5.0);
  EXPECT_DOUBLE_EQ(median(std::vector{7.0}), 7.0);
}

TEST(Statistics, MedianOfAnEvenNumberIsTheMeanOfTheMiddleTwo) {
  EXPECT_DOUBLE_EQ(median(std::vector{10.0, 1.0, 4.0, 3.0}), 3.5);
}

TEST(Statistics, SpreadKeepsTheExtremes) {
  const Spread all = spread(std::vector{2.0, 8.0, 3.0, -1.0, 100.0});
  EXPECT_DOUBLE_EQ(all.median, 3.0);
  EXPECT_DOUBLE_EQ(all.low, -1.0);
  EXPECT_DOUBLE_EQ(all.high, 100.0);
}

TEST(Statistics, RatiosArePairByPair) {
  EXPECT_THAT(ratios(std::vector{6.0, 1.0, 10.0}, std::vector{2.0, 4.0, 5.0}),
              ElementsAre(3.0, 0.25, 2.0));
}

TEST(Statistics, WhatHasNoAnswerIsAnError) {
  EXPECT_EQ(error_of([] { median({}); }).code(), base::ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([] {
              ratios(std::vector{1.0}, std::vector{1.0, 2.0});
            }).code(),
            base::ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([] { ratios(std::vector{1.0}, std::vector{0.0}); }).code(),
            base::ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace fullshard::bench
