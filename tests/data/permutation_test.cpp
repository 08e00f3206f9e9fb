#include "fullshard/data/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace fullshard::data {
namespace {

std::vector<std::int64_t> order(std::int64_t size, std::uint64_t key) {
  const Permutation permutation(size, key);
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < size; ++i) all.push_back(permutation(i));
  return all;
}

TEST(Permutation, HoldsEveryElementOnce) {
  for (const std::int64_t size : {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4097}) {
    for (std::uint64_t key = 0; key < 3; ++key) {
      std::vector<int> seen(static_cast<std::size_t>(size));
      for (const std::int64_t value : order(size, key)) {
        ASSERT_GE(value, 0);
        ASSERT_LT(value, size);
        ++seen[static_cast<std::size_t>(value)];
      }
      for (const int count : seen) ASSERT_EQ(count, 1) << size << ' ' << key;
    }
  }
}

TEST(Permutation, IsPickedByTheKeyAlone) {
  EXPECT_EQ(order(1000, 7), order(1000, 7));
  EXPECT_NE(order(1000, 7), order(1000, 8));
}

TEST(Permutation, KeepsItsOrderForever) {
  // Pinned: a resumed run must meet the samples in the order in which they were left.
  EXPECT_EQ(order(10, 1), (std::vector<std::int64_t>{8, 3, 1, 9, 0, 6, 5, 4, 2, 7}));
}

TEST(Permutation, WorksOnHugeSizes) {
  const std::int64_t size = (std::int64_t{1} << 60) + 12345;
  const Permutation permutation(size, 3);
  for (const std::int64_t i : {std::int64_t{0}, std::int64_t{1}, size / 2, size - 1}) {
    EXPECT_GE(permutation(i), 0);
    EXPECT_LT(permutation(i), size);
  }
  EXPECT_NE(permutation(0), permutation(1));
}

TEST(Permutation, SpreadsNeighboursOverTheWhole) {
  constexpr std::int64_t kSize = 10000;
  const auto all = order(kSize, 5);
  double distance = 0;
  double rank_product = 0;
  for (std::size_t i = 0; i + 1 < all.size(); ++i) {
    distance += std::abs(static_cast<double>(all[i + 1] - all[i]));
    rank_product +=
        (static_cast<double>(i) - kSize / 2.0) * (static_cast<double>(all[i]) - kSize / 2.0);
  }
  // Two independent uniform numbers lie a third of the range apart on average.
  EXPECT_NEAR(distance / (kSize * kSize), 1.0 / 3, 0.01);
  const double variance = static_cast<double>(kSize) * kSize / 12;
  EXPECT_NEAR(rank_product / kSize / variance, 0, 0.05) << "correlated with the original order";
}

}  // namespace
}  // namespace fullshard::data
