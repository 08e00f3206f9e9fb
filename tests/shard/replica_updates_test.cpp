#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  testing::run_both_ways(4, [&](comm::World& world) {
    const auto table =
        fully_shard(kTask.build(), world.mesh({.replicate = 2}), divided()).describe();
    EXPECT_THAT(table, ::testing::HasSubstr("updates divided over 2 replicas"));
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
