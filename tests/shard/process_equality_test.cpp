#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "comm/ranks.h"
#include "support/training.h"

// Promise 1 again, with ranks that are processes of this host.

namespace fullshard::shard {
namespace {

using comm::testing::Backend;

using Point = std::tuple<bool, int, ShardingStrategy>;

class ProcessEquality : public ::testing::TestWithParam<Point> {};

TEST_P(ProcessEquality, Fp64) {
  const auto [is_gpt, ranks, strategy] = GetParam();
  const auto task =
      is_gpt ? testing::gpt_problem(17, 6, 3, /*tied=*/true) : testing::mlp_problem({7, 13, 13, 5});
  const testing::TrainOptions options{.steps = 4, .max_norm = 0.5};
  const StateDict expected = testing::train_reference(task, options);
  comm::testing::run_ranks(
      Backend::kShmProcesses, ranks, [&, chosen = strategy](comm::World& world) {
        const FullyShardOptions sharding{.sharding_strategy = chosen};
        testing::expect_match(testing::train_sharded(task, world, sharding, options), expected,
                              1e-10);
      });
}

std::string name_of(const ::testing::TestParamInfo<Point>& info) {
  static constexpr const char* kStrategies[] = {"FullShard", "ShardGradOp", "NoShard"};
  const auto [is_gpt, ranks, strategy] = info.param;
  return std::string(is_gpt ? "TiedGpt" : "Mlp") + "_R" + std::to_string(ranks) + "_" +
         kStrategies[static_cast<int>(strategy)];
}

INSTANTIATE_TEST_SUITE_P(Grid, ProcessEquality,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(ShardingStrategy::FULL_SHARD,
                                                              ShardingStrategy::SHARD_GRAD_OP,
                                                              ShardingStrategy::NO_SHARD)),
                         name_of);

// Threads and processes run the same protocol over the same memory: the same bits.
TEST(ProcessEquality, ThreadsAndProcessesGiveTheSameBits) {
  const auto task = testing::gpt_problem(17, 6, 2, false, at::kFloat);
  const testing::TrainOptions options{.steps = 5, .optimizer = testing::Optimizer::kFusedAdamW};
  StateDict as_threads;
  comm::run_as_threads(3, [&](comm::World& world) {
    const StateDict state = testing::train_sharded(task, world, {}, options);
    if (world.rank() == 0) as_threads = state;
  });
  comm::testing::run_ranks(Backend::kShmProcesses, 3, [&](comm::World& world) {
    testing::expect_bitwise_equal(testing::train_sharded(task, world, {}, options), as_threads);
  });
}

}  // namespace
}  // namespace fullshard::shard
