#include "fullshard/layout/whole_units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

#include "layout/arbitrary.h"

namespace fullshard::layout {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int> owners(const std::vector<std::int64_t>& bytes, std::vector<std::int64_t> loads,
                        const std::vector<double>& weights = {}) {
  return assign_owners(bytes, std::move(loads), weights);
}

TEST(AssignOwners, LargestFirstToTheLeastLoaded) {
  EXPECT_THAT(owners({2, 7, 3, 5}, {0, 0}), ElementsAre(0, 0, 1, 1));  // 7 + 2 and 5 + 3
  EXPECT_THAT(owners({4, 4, 4}, {0, 0, 0}), ElementsAre(0, 1, 2));
  EXPECT_THAT(owners({}, {0, 0}), IsEmpty());
}

TEST(AssignOwners, WhatRanksOwnAlreadyCounts) {
  EXPECT_THAT(owners({3, 3}, {5, 0}), ElementsAre(1, 1));
}

TEST(AssignOwners, FollowsWeights) {
  EXPECT_THAT(owners({1, 1, 1, 1}, {0, 0}, {3, 1}), ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(owners({8, 8}, {0, 0, 0}, {0, 1, 0}), ElementsAre(1, 1));
}

RC_GTEST_PROP(AssignOwnersProperty, NoRankIsAboveTheMeanByMoreThanTheLargestUnit, ()) {
  const auto ranks = *arbitrary::between<std::size_t>(1, 9);
  const auto bytes =
      *rc::gen::container<std::vector<std::int64_t>>(arbitrary::between<std::int64_t>(0, 1000));
  std::vector<std::int64_t> loads(ranks, 0);
  const std::vector<int> owner = assign_owners(bytes, loads);
  RC_ASSERT(owner.size() == bytes.size());
  for (std::size_t unit = 0; unit < bytes.size(); ++unit) {
    loads.at(static_cast<std::size_t>(owner[unit])) += bytes[unit];
  }
  const std::int64_t total = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  const std::int64_t largest = bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
  for (const std::int64_t load : loads) {
    RC_ASSERT(load <= total / static_cast<std::int64_t>(ranks) + largest);
  }
}

RC_GTEST_PROP(AssignOwnersProperty, ARankOfWeightZeroGetsNothing, ()) {
  const auto ranks = *arbitrary::between(1, 9);
  const std::vector<double> weights = arbitrary::weights(ranks);
  RC_PRE(!weights.empty());
  const auto bytes =
      *rc::gen::container<std::vector<std::int64_t>>(arbitrary::between<std::int64_t>(0, 1000));
  const std::vector<std::int64_t> loads(static_cast<std::size_t>(ranks), 0);
  for (const int rank : assign_owners(bytes, loads, weights)) {
    RC_ASSERT(weights.at(static_cast<std::size_t>(rank)) > 0);
  }
}

}  // namespace
}  // namespace fullshard::layout
