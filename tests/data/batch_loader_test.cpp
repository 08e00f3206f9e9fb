#include "fullshard/data/batch_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>

#include "data/counting_source.h"

namespace fullshard::data {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kSeq = 3;

std::shared_ptr<const Windows> windows_of(std::int64_t count, std::uint64_t seed = 1) {
  return std::make_shared<const Windows>(std::make_shared<CountingTokens>(count * kSeq + 1), kSeq,
                                         seed);
}

std::vector<std::int64_t> rows_of(const StepData& step) {
  std::vector<std::int64_t> rows;
  for (const Batch& batch : step.micro_batches) {
    for (const auto window : windows_in(batch.tokens, kSeq)) rows.push_back(window);
  }
  return rows;
}

/// Rows of `steps` steps over all ranks, a vector a step, ranks in order.
std::vector<std::vector<std::int64_t>> global_steps(const std::shared_ptr<const Windows>& windows,
                                                    LoaderOptions options, int steps,
                                                    Cursor start = {}) {
  std::vector<std::vector<std::int64_t>> all(static_cast<std::size_t>(steps));
  for (options.rank = 0; options.rank < options.world; ++options.rank) {
    BatchLoader loader(windows, options, start);
    for (auto& step : all) {
      for (const auto row : rows_of(loader.next())) step.push_back(row);
    }
  }
  return all;
}

TEST(BatchLoader, AStepIsTheSameForEveryWorldSplitAndPrefetch) {
  const auto windows = windows_of(50);
  const auto alone = global_steps(windows, {.global_batch_size = 12}, 9);
  for (int world = 1; world <= 4; ++world) {
    for (const std::int64_t micro_batches : {1, 2, 3}) {
      for (const int prefetch : {1, 4}) {
        const LoaderOptions options{.global_batch_size = 12,
                                    .micro_batches = micro_batches,
                                    .world = world,
                                    .prefetch = prefetch};
        EXPECT_EQ(global_steps(windows, options, 9), alone) << world << ' ' << micro_batches;
      }
    }
  }
}

TEST(BatchLoader, UnevenSharesAndPiecesLoseNothing) {
  const auto windows = windows_of(50);
  const auto alone = global_steps(windows, {.global_batch_size = 7}, 5);
  for (int world = 2; world <= 3; ++world) {
    const LoaderOptions options{.global_batch_size = 7, .micro_batches = 2, .world = world};
    EXPECT_EQ(global_steps(windows, options, 5), alone);
  }
}

TEST(BatchLoader, EverySampleComesOnceAnEpochAcrossStepBoundaries) {
  const auto windows = windows_of(20);
  std::vector<std::int64_t> rows;
  // 15 steps of 4 are 3 epochs of 20; 3 ranks get 1 or 2 samples each.
  for (const auto& step : global_steps(windows, {.global_batch_size = 4, .world = 3}, 15)) {
    rows.insert(rows.end(), step.begin(), step.end());
  }
  std::set<std::vector<std::int64_t>> orders;
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int64_t> order(rows.begin() + static_cast<std::ptrdiff_t>(20 * epoch),
                                    rows.begin() + static_cast<std::ptrdiff_t>(20 * epoch + 20));
    orders.insert(order);
    std::sort(order.begin(), order.end());
    for (std::int64_t i = 0; i < 20; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i) << epoch;
  }
  EXPECT_EQ(orders.size(), 3u) << "two epochs had the same order";
}

TEST(BatchLoader, ABatchLargerThanTheTextWrapsAround) {
  const auto steps = global_steps(windows_of(3), {.global_batch_size = 8, .world = 2}, 3);
  std::vector<std::int64_t> counts(3);
  for (const auto& step : steps) {
    for (const auto row : step) ++counts[static_cast<std::size_t>(row)];
  }
  EXPECT_EQ(counts, (std::vector<std::int64_t>{8, 8, 8}));
}

TEST(BatchLoader, TwoRunsAreIdenticalAndSeedsDiffer) {
  const LoaderOptions options{.global_batch_size = 6, .world = 2};
  EXPECT_EQ(global_steps(windows_of(50, 9), options, 6),
            global_steps(windows_of(50, 9), options, 6));
  EXPECT_NE(global_steps(windows_of(50, 9), options, 6),
            global_steps(windows_of(50, 8), options, 6));
}

TEST(BatchLoader, AResumedRunEqualsTheUninterruptedOne) {
  const auto windows = windows_of(21);
  const LoaderOptions options{.global_batch_size = 4, .prefetch = 4};
  const auto straight = global_steps(windows, options, 16);
  for (std::size_t stop = 0; stop <= 12; ++stop) {
    BatchLoader first(windows, options);
    for (std::size_t i = 0; i < stop; ++i) first.next();
    // Resume on another number of ranks, as after a rescale.
    LoaderOptions other = options;
    other.world = 3;
    const auto rest = global_steps(windows, other, 16 - static_cast<int>(stop), first.cursor());
    EXPECT_TRUE(
        std::equal(rest.begin(), rest.end(), straight.begin() + static_cast<std::ptrdiff_t>(stop)))
        << stop;
  }
}

TEST(BatchLoader, TheCursorCountsOnlyWhatWasHandedOut) {
  BatchLoader loader(windows_of(10), {.global_batch_size = 4, .prefetch = 3});
  EXPECT_EQ(loader.cursor(), (Cursor{0, 0}));
  const StepData step = loader.next();
  EXPECT_EQ(step.begin, (Cursor{0, 0}));
  EXPECT_EQ(step.end, (Cursor{0, 4}));
  EXPECT_EQ(loader.cursor(), (Cursor{0, 4}));
  loader.next();
  loader.next();
  EXPECT_EQ(loader.cursor(), (Cursor{1, 2}));
}

TEST(BatchLoader, SeekGoesBackAndForth) {
  const auto windows = windows_of(30);
  BatchLoader loader(windows, {.global_batch_size = 5});
  const auto first = rows_of(loader.next());
  const auto second = rows_of(loader.next());
  loader.seek({0, 0});
  EXPECT_EQ(rows_of(loader.next()), first);
  loader.seek({0, 5});
  EXPECT_EQ(rows_of(loader.next()), second);
  EXPECT_THAT(error_of(base::ErrorCode::kInvalidArgument,
                       [&] {
                         loader.seek({0, 30});
                       }),
              HasSubstr("sample 30 of epoch 0; an epoch has 30 samples"));
}

/// Works for a number of reads, then fails.
class FailingTokens : public CountingTokens {
 public:
  FailingTokens(std::int64_t size, int good_reads)
      : CountingTokens(size), good_reads_(good_reads) {}

  void read(std::int64_t begin, std::span<std::int64_t> out) const override {
    if (good_reads_-- <= 0) throw std::runtime_error("bad sample 17");
    CountingTokens::read(begin, out);
  }

 private:
  mutable std::atomic<int> good_reads_;
};

TEST(BatchLoader, AnErrorOnTheThreadArrivesInItsTurnAndStays) {
  const auto source = std::make_shared<FailingTokens>(100, 4);
  BatchLoader loader(std::make_shared<const Windows>(source, kSeq, 1),
                     {.global_batch_size = 2, .prefetch = 8});
  EXPECT_EQ(rows_of(loader.next()).size(), 2u);
  EXPECT_EQ(rows_of(loader.next()).size(), 2u);
  for (int again = 0; again < 3; ++again) {
    try {
      loader.next();
      FAIL() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "bad sample 17");
    }
  }
  EXPECT_EQ(loader.cursor(), (Cursor{0, 4})) << "a failed step must not count";
}

TEST(BatchLoader, NeverReadsFurtherAheadThanAsked) {
  class CountingReads : public CountingTokens {
   public:
    using CountingTokens::CountingTokens;
    void read(std::int64_t begin, std::span<std::int64_t> out) const override {
      ++reads;
      CountingTokens::read(begin, out);
    }
    mutable std::atomic<int> reads{0};
  };
  const auto source = std::make_shared<CountingReads>(1000);
  constexpr int kReads = 2 * (1 + 3);  // the step handed out and the three made ahead
  {
    BatchLoader loader(std::make_shared<const Windows>(source, kSeq, 1),
                       {.global_batch_size = 2, .prefetch = 3});
    loader.next();
    while (source->reads < kReads) std::this_thread::yield();
  }
  EXPECT_EQ(source->reads, kReads);
}

TEST(BatchLoader, EndsWithAFullQueueAnEmptyOneAndAfterAnError) {
  for (int i = 0; i < 50; ++i) {
    BatchLoader unused(windows_of(10), {.global_batch_size = 2, .prefetch = 1 + i % 3});
    BatchLoader used(windows_of(10), {.global_batch_size = 2});
    used.next();
    const auto source = std::make_shared<FailingTokens>(100, 0);
    BatchLoader failed(std::make_shared<const Windows>(source, kSeq, 1), {.global_batch_size = 1});
  }
  SUCCEED();
}

TEST(BatchLoader, NamesWhatCannotBeUsed) {
  const auto message = [](LoaderOptions options, Cursor start) {
    return error_of(base::ErrorCode::kInvalidArgument,
                    [&] { BatchLoader(windows_of(10), options, start); });
  };
  EXPECT_THAT(message({.global_batch_size = 5, .micro_batches = 2, .world = 3}, {}),
              HasSubstr("5 samples is too small for 3 ranks with 2 micro-batches each: it must be "
                        "at least 6"));
  EXPECT_THAT(message({.global_batch_size = 4, .prefetch = 0}, {}), HasSubstr("prefetch"));
  EXPECT_THAT(message({.global_batch_size = 4, .micro_batches = 0}, {}),
              HasSubstr("micro_batches"));
  EXPECT_THAT(message({.global_batch_size = 4}, {0, 10}), HasSubstr("sample 10 of epoch 0"));
  EXPECT_THAT(message({.global_batch_size = 4}, {-1, 0}), HasSubstr("epoch -1"));
}

}  // namespace
}  // namespace fullshard::data
