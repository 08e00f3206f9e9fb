#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <limits>
#include <string>
#include <vector>

#include "support/equality.h"
#include "support/networks.h"

// Replicas that divide the updates of the shards they have in common: the same training, and
// gradients and optimizer state once in the whole job.

namespace fullshard::shard {
namespace {

using testing::TrainOptions;

const testing::Problem kTask = testing::gpt_problem(17, 6, 3, /*tied=*/true);

FullyShardOptions divided(FullyShardOptions sharding = {}) {
  sharding.shard_optimizer_over_replicas = true;
  return sharding;
}

struct Arrangement {
  int ranks;
  int replicate;
};

const std::vector<Arrangement> kArrangements = {{2, 2}, {4, 2}, {4, 4}, {6, 3}};

void expect_equal(const FullyShardOptions& sharding, bool over_gloo = false) {
  for (const auto& [ranks, replicate] : kArrangements) {
    if (over_gloo && replicate != 2) continue;
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(replicate) + " replicas");
    testing::expect_equal_training(kTask, {.ranks = ranks,
                                           .sharding = sharding,
                                           .mesh = {.replicate = replicate},
                                           .over_gloo = over_gloo});
  }
}

TEST(ReplicaUpdates, TrainEqualToUnsharded) {
  for (const auto strategy : {ShardingStrategy::HYBRID_SHARD, ShardingStrategy::SHARD_GRAD_OP,
                              ShardingStrategy::SHARD_OPTIMIZER_ONLY}) {
    expect_equal(divided({.sharding_strategy = strategy}));
  }
}

TEST(ReplicaUpdates, WithEveryGranularity) {
  using layout::Atom;
  for (const auto atom : {Atom::kRow, Atom::kColumn, Atom::kParameter, Atom::kUnit}) {
    expect_equal(divided({.rules = {{.pattern = "*norm*", .strategy = ShardingStrategy::NO_SHARD},
                                    {.pattern = "*", .atom = atom}}}));
  }
  testing::expect_equal_training(
      kTask,
      {.ranks = 4, .sharding = divided({.shard_weights = {0.1, 0.3}}), .mesh = {.replicate = 2}});
}

TEST(ReplicaUpdates, WithoutSharedMemory) {
  expect_equal(divided(), /*over_gloo=*/true);
  expect_equal(divided({.reduce_bucket_bytes = 1 << 20}), /*over_gloo=*/true);
  expect_equal(divided({.dynamic = true}), /*over_gloo=*/true);
  expect_equal(divided({.rules = {{.pattern = "blocks.*", .atom = layout::Atom::kUnit}},
                        .reduce_bucket_bytes = 1 << 12}),
               /*over_gloo=*/true);
}

TEST(ReplicaUpdates, BetweenHosts) {
  const TrainOptions options{.steps = 3, .max_norm = 0.5};
  const StateDict expected = testing::train_reference(kTask, options);
  const std::vector<FullyShardOptions> choices = {
      divided(), divided({.rules = {{.pattern = "blocks.*", .atom = layout::Atom::kUnit}}}),
      divided({.shard_weights = {0.1, 0.3}})};
  for (const FullyShardOptions& sharding : choices) {
    testing::run_on_hosts(2, 2, [&](comm::World& world) {
      testing::expect_match(
          testing::train_sharded(kTask, world, sharding, options, {.replicate = 2}), expected,
          1e-10);
    });
  }
}

TEST(ReplicaUpdates, AHookReducesWhatARankHolds) {
  const TrainOptions options{.steps = 3};
  const StateDict expected = testing::train_reference(kTask, options);
  const FullyShardOptions sharding = divided(
      {.reduce_bucket_bytes = 2048, .communication_hook = compress_gradients_to(at::kDouble)});
  const auto train = [&](comm::World& world) {
    testing::expect_match(testing::train_sharded(kTask, world, sharding, options, {.replicate = 2}),
                          expected, 1e-10);
  };
  testing::run_over_gloo(4, train);
  testing::run_on_hosts(2, 2, train);
}

TEST(ReplicaUpdates, AreInTheTable) {
  const auto task = testing::mlp_problem({8, 8, 4});
  testing::run_both_ways(4, [&](comm::World& world) {
    const auto sharded = fully_shard(
        task.build(), world.mesh({.replicate = 2}),
        divided({.rules = {{.pattern = "layers.1.weight", .atom = layout::Atom::kColumn},
                           {.pattern = "*1.bias", .strategy = ShardingStrategy::NO_SHARD}}}));
    EXPECT_EQ(sharded.describe(),
              "4 ranks: 2 x shard 2\n"
              "layers.0  FULL_SHARD  float64  576 B  updates divided over 2 replicas\n"
              "  layers.0.weight  [8, 8]  0:[0,40) 1:[40,64)\n"
              "    updated by 0:[0,16) 2:[16,40) 1:[40,56) 3:[56,64)\n"
              "  layers.0.bias  [8]  1:[0,8)\n"
              "    updated by 3:[0,8)\n"
              "layers.1 [Double, FULL_SHARD]  FULL_SHARD  float64  256 B  updates divided over 2 "
              "replicas\n"
              "  layers.1.weight  [4, 8]  0:columns[0,4) 1:columns[4,8)  atom 1 column\n"
              "    updated by 0:columns[0,2) 2:columns[2,4) 1:columns[4,6) 3:columns[6,8)\n"
              "layers.1 [Double, NO_SHARD]  NO_SHARD  float64  64 B\n"
              "  layers.1.bias  [4]  all ranks\n");
  });
}

// The table's numbers are those of the ranks in the job.
TEST(ReplicaUpdates, TheTableIsWhatEachRankUpdates) {
  testing::run_both_ways(4, [&](comm::World& world) {
    const auto sharded = fully_shard(kTask.build(), world.mesh({.replicate = 2}), divided());
    const std::string table = sharded.describe();
    for (const state::ShardedTensor& shard : sharded.named_parameters()) {
      const std::size_t row = table.find("  " + shard.name + " ");
      const std::size_t updaters = table.find("    updated by", row);
      const std::string line = table.substr(updaters, table.find('\n', updaters) - updaters);
      const std::string mine = fmt::format(" {}:", world.rank());
      if (shard.begin == shard.end) {
        EXPECT_THAT(line, ::testing::Not(::testing::HasSubstr(mine)));
      } else {
        EXPECT_THAT(line,
                    ::testing::HasSubstr(fmt::format("{}[{},{})", mine, shard.begin, shard.end)));
      }
    }
  });
}

// Sum over ranks of what an optimizer would keep state for.
std::int64_t updated_elements(const ShardedModule& sharded, comm::World& world) {
  std::int64_t sum = 0;
  for (const at::Tensor& shard : sharded.parameters()) sum += shard.numel();
  world.group().all_reduce({&sum, 1, base::DType::kInt64}, comm::ReduceOp::kSum, {}).wait();
  return sum;
}

TEST(ReplicaUpdates, EveryElementIsUpdatedOnce) {
  testing::run_both_ways(4, [&](comm::World& world) {
    const auto apart = fully_shard(kTask.build(), world.mesh({.replicate = 2}), divided());
    const auto alike = fully_shard(kTask.build(), world.mesh({.replicate = 2}));
    EXPECT_EQ(updated_elements(apart, world), apart.parameter_count());
    EXPECT_EQ(updated_elements(alike, world), 2 * apart.parameter_count());
    EXPECT_EQ(apart.counters().parameter_shard_bytes, alike.counters().parameter_shard_bytes);
  });
}

TEST(ReplicaUpdates, NormsAndClippingSeeTheWholeModel) {
  for (const double p : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    const TrainOptions options{.steps = 3, .max_norm = 0.3, .norm_type = p};
    const StateDict expected = testing::train_reference(kTask, options);
    testing::run_both_ways(4, [&](comm::World& world) {
      const FullyShardOptions sharding =
          divided({.rules = {{.pattern = "norm.*", .strategy = ShardingStrategy::NO_SHARD}}});
      testing::expect_match(
          testing::train_sharded(kTask, world, sharding, options, {.replicate = 2}), expected,
          1e-10);
    });
  }
}

TEST(ReplicaUpdates, StateIsLoadedAndEditedOnAllReplicas) {
  testing::run_both_ways(4, [&](comm::World& world) {
    const auto model = kTask.build();
    FullyShardOptions own_values = divided();
    own_values.sync_module_states = false;
    const auto sharded = fully_shard(model, world.mesh({.replicate = 2}), own_values);
    StateDict state = sharded.full_state_dict();
    testing::expect_bitwise_equal(state, testing::parameters_of(*kTask.build()));
    for (auto& [name, value] : state) value = value * 2;
    sharded.load_state_dict(state);
    testing::expect_bitwise_equal(sharded.full_state_dict(), state);
    {
      auto scope = sharded.unsharded(UnshardedMode::kWrite);
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : testing::unique_parameters(*model)) parameter.mul_(2);
      scope.close();
    }
    for (auto& [name, value] : state) value = value * 2;
    testing::expect_bitwise_equal(sharded.full_state_dict(), state);
  });
}

TEST(ReplicaUpdates, WithoutReplicasTheOptionChangesNothing) {
  testing::expect_equal_training(kTask, {.ranks = 3, .sharding = divided()});
}

}  // namespace
}  // namespace fullshard::shard
