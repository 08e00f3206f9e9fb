// Random collectives for as long as asked: FULLSHARD_SOAK_SECONDS; a moment by itself.

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "comm/ranks.h"
#include "comm/values.h"
#include "fullshard/base/deadline.h"

namespace fullshard::comm::testing {
namespace {

using base::DType;

constexpr int kRanks = 4;
constexpr int kRoundsAtLeast = 100;

base::Duration soak_time() {
  const char* text = std::getenv("FULLSHARD_SOAK_SECONDS");
  return std::chrono::seconds(text == nullptr ? 0 : std::atoi(text));
}

// One collective; every rank draws the same numbers.
void do_something(Group& group, std::mt19937& random) {
  const std::int64_t count = std::uniform_int_distribution<std::int64_t>(0, 20'000)(random);
  const int choice = std::uniform_int_distribution<int>(0, 4)(random);
  const int root = std::uniform_int_distribution<int>(0, group.size() - 1)(random);
  Values mine = make_input(DType::kInt64, group.rank(), count);
  Values all(DType::kInt64, count * group.size());
  const std::int64_t at = count / 2;
  switch (choice) {
    case 0: {
      group.all_gather(mine.input(), all.buffer(), {}, {}).wait();
      if (count > 0) EXPECT_EQ(all.get(root * count + at), input_value(DType::kInt64, root, at));
      break;
    }
    case 1: {
      group.all_reduce(mine.buffer(), ReduceOp::kMax, {}).wait();
      double largest = 0;
      for (int r = 0; r < group.size() && count > 0; ++r) {
        const double value = input_value(DType::kInt64, r, at);
        largest = r == 0 ? value : std::max(largest, value);
      }
      if (count > 0) EXPECT_EQ(mine.get(at), largest);
      break;
    }
    case 2: {
      group.broadcast(mine.buffer(), root, {}).wait();
      if (count > 0) EXPECT_EQ(mine.get(at), input_value(DType::kInt64, root, at));
      break;
    }
    case 3: {
      for (std::int64_t i = 0; i < all.count(); ++i) all.set(i, static_cast<double>(i));
      group.reduce_scatter(all.input(), mine.buffer(), ReduceOp::kSum, {}, {}).wait();
      if (count > 0) {
        EXPECT_EQ(mine.get(at), static_cast<double>(group.size() * (group.rank() * count + at)));
      }
      break;
    }
    default: group.barrier({});
  }
}

class Soak : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, Soak, ::testing::ValuesIn(backends()),
                         [](const auto& instance) { return name_of(instance.param); });

// Two threads of each rank, each in a group of its own, and now and then a new subgroup.
TEST_P(Soak, CollectivesOfTwoGroupsAtOnce) {
  run_ranks(GetParam(), kRanks, [](World& world) {
    const std::vector<int> backwards = {3, 2, 1, 0};
    const auto other_group = world.group().subgroup(backwards);
    const auto work = [](Group& group, unsigned seed) {
      std::mt19937 random(seed);
      const auto until = base::Deadline::after(soak_time());
      int going_on = 1;
      for (int round = 0; going_on == 1; ++round) {
        do_something(group, random);
        if (round % 50 != 0) continue;
        const std::vector<int> some = {round % kRanks, (round + 1) % kRanks};
        if (const auto pair = group.subgroup(some)) do_something(*pair, random);
        random.seed(seed + static_cast<unsigned>(round));  // ranks outside the pair drew less
        going_on = round < kRoundsAtLeast || !until.passed() ? 1 : 0;
        group.broadcast({&going_on, 1, DType::kInt32}, 0, {}).wait();
      }
    };
    std::jthread other([&] { work(*other_group, 1); });
    work(world.group(), 2);
    other.join();
    world.group().barrier({});
  });
}

}  // namespace
}  // namespace fullshard::comm::testing
