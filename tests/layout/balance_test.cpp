#include "fullshard/layout/balance.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "fullshard/base/error.h"

namespace fullshard::layout {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

TEST(Balance, EqualRanksGetEqualShares) {
  const std::vector<RankLoad> ranks(
      4, {.fixed_seconds = 1, .seconds_per_element = 1e-6, .most_elements = kNoLimit});
  for (const double share : balance(ranks, 1000)) EXPECT_NEAR(share, 250, 1e-3);
}

TEST(Balance, ASlowRankGetsWhatItCanDoInTheTimeOfTheOthers) {
  // Within T seconds the first does T / 2 elements, the second T - 10: both take 80 s for 40
  // and 70.
  const std::vector<RankLoad> ranks{{0, 2, kNoLimit}, {10, 1, kNoLimit}};
  const std::vector<double> owned = balance(ranks, 110);
  EXPECT_NEAR(owned[0], 40, 1e-6);
  EXPECT_NEAR(owned[1], 70, 1e-6);
  EXPECT_NEAR(slowest(ranks, owned), 80, 1e-6);
}

TEST(Balance, ARankThatIsBehindAnywayGetsNothing) {
  const std::vector<RankLoad> ranks{{100, 1, kNoLimit}, {0, 1, kNoLimit}};
  const std::vector<double> owned = balance(ranks, 50);
  EXPECT_NEAR(owned[0], 0, 1e-6);
  EXPECT_NEAR(owned[1], 50, 1e-6);
}

TEST(Balance, NoRankGetsMoreThanItHasRoomFor) {
  const std::vector<RankLoad> ranks{{0, 1, 10}, {0, 1, kNoLimit}, {0, 1, kNoLimit}};
  const std::vector<double> owned = balance(ranks, 100);
  EXPECT_NEAR(owned[0], 10, 1e-6);
  EXPECT_NEAR(owned[1], 45, 1e-6);
}

TEST(Shed, WhatIsTooMuchGoesToTheOthersInEqualPartsAsFarAsTheyHaveRoom) {
  const std::vector<double> after =
      shed(std::vector<double>{50, 30, 20, 0}, std::vector<double>{20, 35, kNoLimit, kNoLimit});
  EXPECT_NEAR(after[0], 20, 1e-6);
  EXPECT_NEAR(after[1], 35, 1e-6);
  EXPECT_NEAR(after[2], 20 + 12.5, 1e-6);
  EXPECT_NEAR(after[3], 12.5, 1e-6);
  EXPECT_THROW(shed(std::vector<double>{10, 10}, std::vector<double>{5, 12}), base::Error);
}

TEST(Balance, WhatCannotBeIsAnErrorThatSaysWhy) {
  EXPECT_THROW(balance(std::vector<RankLoad>{{0, 1, 10}, {0, 1, 5}}, 16), base::Error);
  EXPECT_THROW(balance(std::vector<RankLoad>{{-1, 1, 10}}, 1), base::Error);
  EXPECT_THROW(balance(std::vector<RankLoad>{{0, std::nan(""), 10}}, 1), base::Error);
}

// What can be moved from the slowest rank to another would make that one slower than it was.
RC_GTEST_PROP(Balance, NoMoveWouldMakeTheSlowestQuicker, ()) {
  std::vector<RankLoad> ranks;
  const int count = *rc::gen::inRange(1, 9);
  ranks.reserve(static_cast<std::size_t>(count));
  for (int rank = 0; rank < count; ++rank) {
    ranks.push_back({.fixed_seconds = *rc::gen::inRange(0, 1000) * 1e-3,
                     .seconds_per_element = *rc::gen::inRange(0, 1000) * 1e-9,
                     .most_elements = *rc::gen::element(kNoLimit, 0.0, 1e5, 1e6)});
  }
  const double elements = *rc::gen::inRange(0, 1000000);
  double room = 0;
  for (const RankLoad& load : ranks) room += load.most_elements;
  RC_PRE(room >= elements);
  const std::vector<double> owned = balance(ranks, elements);
  RC_ASSERT(std::abs(std::accumulate(owned.begin(), owned.end(), 0.0) - elements) <=
            1e-9 * (1 + elements));
  const double seconds = slowest(ranks, owned);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    RC_ASSERT(owned[rank] >= 0 && owned[rank] <= ranks[rank].most_elements * (1 + 1e-12));
    const double its = ranks[rank].fixed_seconds + ranks[rank].seconds_per_element * owned[rank];
    const bool has_room = owned[rank] < ranks[rank].most_elements * (1 - 1e-9);
    const bool bound = std::any_of(owned.begin(), owned.end(), [&](const double& share) {
      const auto other = static_cast<std::size_t>(&share - owned.data());
      return share > 1e-6 && ranks[other].seconds_per_element > 0;
    });
    if (has_room && bound && ranks[rank].seconds_per_element > 0) {
      RC_ASSERT(its >= seconds - 1e-6 * (1 + seconds) ||
                slowest(ranks, std::vector<double>(ranks.size(), 0)) >= seconds - 1e-9);
    }
  }
}

}  // namespace
}  // namespace fullshard::layout
