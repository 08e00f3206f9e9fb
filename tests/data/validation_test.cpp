#include "fullshard/data/validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "data/counting_source.h"

namespace fullshard::data {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kSeq = 3;

ValidationSet make(std::int64_t windows, ValidationOptions options) {
  options.seq_len = kSeq;
  return {std::make_shared<CountingTokens>(windows * kSeq + 1), options};
}

/// Window numbers over all ranks, rank after rank.
std::vector<std::int64_t> all_windows(std::int64_t windows, std::int64_t max_samples, int world,
                                      std::int64_t batch_size) {
  std::vector<std::int64_t> all;
  for (int rank = 0; rank < world; ++rank) {
    const auto set =
        make(windows,
             {.max_samples = max_samples, .batch_size = batch_size, .rank = rank, .world = world});
    std::int64_t rows = 0;
    for (std::int64_t round = 0; round < set.rounds(); ++round) {
      const Batch batch = set.batch(round);
      EXPECT_LE(batch.tokens.size(0), batch_size);
      EXPECT_TRUE(batch.targets.equal(batch.tokens + 1));
      rows += batch.tokens.size(0);
      for (const auto window : windows_in(batch.tokens, kSeq)) all.push_back(window);
    }
    EXPECT_EQ(rows, set.local_samples());
  }
  return all;
}

TEST(ValidationSet, TheSetIsTheSameForEveryWorldAndBatchSize) {
  for (const std::int64_t max_samples : {0, 1, 2, 7, 21, 100}) {
    const auto alone = all_windows(21, max_samples, 1, 64);
    const std::size_t expected =
        max_samples == 0 || max_samples > 21 ? 21 : static_cast<std::size_t>(max_samples);
    EXPECT_EQ(alone.size(), expected);
    EXPECT_TRUE(std::adjacent_find(alone.begin(), alone.end(), std::greater_equal<>()) ==
                alone.end())
        << "a window was repeated or out of order";
    for (int world = 1; world <= 4; ++world) {
      for (const std::int64_t batch_size : {1, 2, 5}) {
        EXPECT_EQ(all_windows(21, max_samples, world, batch_size), alone)
            << world << ' ' << batch_size;
      }
    }
  }
}

TEST(ValidationSet, ALimitedSetCoversTheWholeText) {
  EXPECT_EQ(all_windows(20, 4, 1, 8), (std::vector<std::int64_t>{0, 5, 10, 15}));
  EXPECT_EQ(all_windows(10, 3, 1, 8), (std::vector<std::int64_t>{0, 3, 6}));
}

TEST(ValidationSet, AllRanksRunTheSameNumberOfRounds) {
  for (int world = 1; world <= 5; ++world) {
    const auto rounds = make(13, {.batch_size = 2, .rank = 0, .world = world}).rounds();
    for (int rank = 1; rank < world; ++rank) {
      EXPECT_EQ(make(13, {.batch_size = 2, .rank = rank, .world = world}).rounds(), rounds);
    }
  }
}

TEST(ValidationSet, ARankWithoutSamplesGetsEmptyBatches) {
  const auto set = make(2, {.batch_size = 4, .rank = 0, .world = 3});
  EXPECT_EQ(set.local_samples(), 0);
  ASSERT_EQ(set.rounds(), 1);
  EXPECT_EQ(set.batch(0).tokens.sizes(), (std::vector<std::int64_t>{0, kSeq}));
}

TEST(ValidationSet, NamesWhatCannotBeUsed) {
  EXPECT_THAT(error_of(base::ErrorCode::kInvalidArgument, [] { make(0, {}); }),
              HasSubstr("too short"));
  EXPECT_THAT(error_of(base::ErrorCode::kInvalidArgument, [] { make(5, {.batch_size = 0}); }),
              HasSubstr("batch_size must be at least 1"));
}

}  // namespace
}  // namespace fullshard::data
