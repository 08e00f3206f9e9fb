#include "fullshard/data/windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "data/counting_source.h"

namespace fullshard::data {
namespace {

using testing::HasSubstr;

std::shared_ptr<const Windows> counting(std::int64_t size, std::int64_t seq_len,
                                        std::uint64_t seed = 1) {
  return std::make_shared<const Windows>(std::make_shared<CountingTokens>(size), seq_len, seed);
}

std::vector<std::int64_t> epoch_order(const Windows& windows, std::int64_t epoch) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < windows.per_epoch(); ++i)
    order.push_back(windows.window_of({epoch, i}));
  return order;
}

TEST(Bytes, AreTheirOwnIds) {
  const std::string text("a\0\xff\n", 4);
  const auto tokens = encode_bytes(text);
  EXPECT_TRUE(tokens.equal(torch::tensor({97, 0, 255, 10}, torch::kLong)));
  EXPECT_EQ(decode_bytes(tokens), text);
  EXPECT_EQ(decode_bytes(encode_bytes("")), "");
  EXPECT_THAT(error_of(base::ErrorCode::kInvalidArgument,
                       [] {
                         decode_bytes(torch::tensor({1, 256}, torch::kLong));
                       }),
              HasSubstr("token 1 is 256"));
}

TEST(Bytes, KeepTheirTextAlive) {
  auto text = std::make_shared<const std::string>("hello world");
  const ByteTokens tokens(text, std::string_view(*text).substr(6));
  text.reset();
  std::vector<std::int64_t> out(5);
  tokens.read(0, out);
  EXPECT_EQ(tokens.size(), 5);
  EXPECT_EQ(out, (std::vector<std::int64_t>{'w', 'o', 'r', 'l', 'd'}));
}

TEST(Shares, JoinWithoutGapAndDifferByOneAtMost) {
  for (std::int64_t total = 0; total <= 20; ++total) {
    for (std::int64_t count = 1; count <= 7; ++count) {
      std::int64_t end = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const Share share = share_of(total, i, count);
        EXPECT_EQ(share.begin, end);
        EXPECT_GE(share.size(), total / count);
        EXPECT_LE(share.size(), (total + count - 1) / count);
        end = share.end;
      }
      EXPECT_EQ(end, total);
    }
  }
}

TEST(Windows, TargetsAreTheTokensOnePositionLater) {
  const auto windows = counting(41, 4);
  const Batch batch = windows->batch(3, 5);
  EXPECT_EQ(batch.tokens.sizes(), (std::vector<std::int64_t>{5, 4}));
  EXPECT_TRUE(batch.targets.equal(batch.tokens + 1));
  EXPECT_TRUE(batch.tokens.is_contiguous() && batch.targets.is_contiguous());
  EXPECT_EQ(batch.tokens.scalar_type(), torch::kLong);
}

// Multiples of three are not to be learnt.
class WithoutThirds : public CountingTokens {
 public:
  using CountingTokens::CountingTokens;
  void mask(std::int64_t begin, std::span<std::int64_t> targets) const override {
    for (std::int64_t& target : targets) {
      EXPECT_EQ(target, begin);
      if (begin++ % 3 == 0) target = kIgnoredTarget;
    }
  }
};

TEST(Windows, ASourceMasksTargetsAndLeavesTokens) {
  const Batch batch = read_windows(WithoutThirds(41), 4, std::vector<std::int64_t>{2, 0, 9});
  EXPECT_TRUE(batch.tokens.equal(
      torch::tensor({{8, 9, 10, 11}, {0, 1, 2, 3}, {36, 37, 38, 39}}, torch::kLong)));
  EXPECT_TRUE(batch.targets.equal(
      torch::tensor({{-100, 10, 11, -100}, {1, 2, -100, 4}, {37, 38, -100, 40}}, torch::kLong)));
  EXPECT_EQ(batch.learnt(), 8);
  const Batch one_row = read_windows(WithoutThirds(41), 4, std::vector<std::int64_t>{2});
  EXPECT_TRUE(one_row.tokens.equal(batch.tokens.narrow(0, 0, 1)));
  EXPECT_TRUE(one_row.targets.equal(batch.targets.narrow(0, 0, 1)));
}

TEST(Windows, EveryTokenButTheFirstIsATargetOnceAnEpoch) {
  const auto windows = counting(37, 4);
  ASSERT_EQ(windows->per_epoch(), 9);
  auto targets = windows->batch(0, 9).targets.reshape({-1});
  EXPECT_TRUE(std::get<0>(targets.sort()).equal(torch::arange(1, 37)));
}

TEST(Windows, ALastPartShorterThanAWindowIsLeftOut) {
  EXPECT_EQ(counting(5, 4)->per_epoch(), 1);
  EXPECT_EQ(counting(8, 4)->per_epoch(), 1);
  EXPECT_EQ(counting(9, 4)->per_epoch(), 2);
}

TEST(Windows, EachEpochHasEachWindowOnceInItsOwnOrder) {
  const auto windows = counting(501, 5);
  std::set<std::vector<std::int64_t>> orders;
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    auto order = epoch_order(*windows, epoch);
    orders.insert(order);
    std::sort(order.begin(), order.end());
    for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  }
  EXPECT_EQ(orders.size(), 4u) << "two epochs had the same order";
}

TEST(Windows, TheSeedAloneDecidesTheOrder) {
  EXPECT_EQ(epoch_order(*counting(501, 5, 3), 1), epoch_order(*counting(501, 5, 3), 1));
  EXPECT_NE(epoch_order(*counting(501, 5, 3), 1), epoch_order(*counting(501, 5, 4), 1));
}

TEST(Windows, ABatchMayCrossIntoTheNextEpoch) {
  const auto windows = counting(41, 4);
  const auto across = windows_in(windows->batch(8, 4).tokens, 4);
  EXPECT_EQ(across,
            (std::vector<std::int64_t>{windows->window_of({0, 8}), windows->window_of({0, 9}),
                                       windows->window_of({1, 0}), windows->window_of({1, 1})}));
}

TEST(Windows, TooShortATextIsAnError) {
  EXPECT_THAT(error_of(base::ErrorCode::kInvalidArgument, [] { counting(4, 4); }),
              HasSubstr("a text of 4 tokens is too short: one sample of seq_len 4 takes 5"));
  EXPECT_THAT(error_of(base::ErrorCode::kInvalidArgument, [] { counting(0, 4); }),
              HasSubstr("0 tokens"));
  EXPECT_THAT(error_of(base::ErrorCode::kInvalidArgument, [] { counting(4, 0); }),
              HasSubstr("seq_len must be at least 1"));
}

}  // namespace
}  // namespace fullshard::data
