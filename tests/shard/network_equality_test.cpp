#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "support/equality.h"
#include "support/networks.h"

// Promise 1 once more, with ranks that do not share memory.

namespace fullshard::shard {
namespace {

using testing::EqualityOptions;
using testing::Problem;

Problem problem(bool is_gpt, at::ScalarType dtype = at::kDouble) {
  return is_gpt ? testing::gpt_problem(17, 6, 3, /*tied=*/true, dtype)
                : testing::mlp_problem({7, 13, 13, 5}, dtype);
}

using Point = std::tuple<bool, int, ShardingStrategy, bool>;

class NetworkEquality : public ::testing::TestWithParam<Point> {};

TEST_P(NetworkEquality, Fp64) {
  const auto [is_gpt, ranks, strategy, dynamic] = GetParam();
  const Problem task = problem(is_gpt);
  const testing::TrainOptions options{.steps = 4, .max_norm = 0.5};
  const StateDict expected = testing::train_reference(task, options);
  const FullyShardOptions sharding{.sharding_strategy = strategy, .dynamic = dynamic};
  testing::run_over_gloo(ranks, [&](comm::World& world) {
    testing::expect_match(testing::train_sharded(task, world, sharding, options), expected, 1e-10);
  });
}

std::string name_of(const ::testing::TestParamInfo<Point>& info) {
  const auto [is_gpt, ranks, strategy, dynamic] = info.param;
  static constexpr const char* kStrategies[] = {"FullShard", "ShardGradOp", "NoShard", "",
                                                "OptimizerOnly"};
  return std::string(is_gpt ? "TiedGpt" : "Mlp") + "_R" + std::to_string(ranks) + "_" +
         kStrategies[static_cast<int>(strategy)] + (dynamic ? "_Dynamic" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Grid, NetworkEquality,
    ::testing::Combine(::testing::Bool(), ::testing::Values(1, 2, 3),
                       ::testing::Values(ShardingStrategy::FULL_SHARD,
                                         ShardingStrategy::SHARD_GRAD_OP,
                                         ShardingStrategy::NO_SHARD,
                                         ShardingStrategy::SHARD_OPTIMIZER_ONLY),
                       ::testing::Bool()),
    name_of);

// Whoever adds, it is in the order of the ranks.
TEST(Network, GivesTheBitsOfSharedMemory) {
  const Problem task = problem(true, at::kFloat);
  const testing::TrainOptions options{.steps = 4, .optimizer = testing::Optimizer::kFusedAdamW};
  StateDict sharing;
  comm::run_as_threads(3, [&](comm::World& world) {
    const StateDict state = testing::train_sharded(task, world, {}, options);
    if (world.rank() == 0) sharing = state;
  });
  testing::run_over_gloo(3, [&](comm::World& world) {
    testing::expect_bitwise_equal(testing::train_sharded(task, world, {}, options), sharing);
  });
}

void expect_hybrid(const Problem& task, comm::World& world, const comm::Mesh& mesh,
                   const FullyShardOptions& sharding, const StateDict& expected,
                   const testing::TrainOptions& options) {
  const auto model = task.build();
  const auto sharded = fully_shard(model, mesh, sharding);
  testing::train_steps(*model, sharded, world, task, options);
  testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
}

TEST(Network, HybridShardingWithAndWithoutSharedMemoryInsideAHost) {
  const testing::TrainOptions options{.steps = 4, .max_norm = 0.5};
  const std::vector<ParameterRule> rules = {
      {.pattern = "*.bias", .strategy = ShardingStrategy::NO_SHARD}};
  for (const bool is_gpt : {false, true}) {
    const Problem task = problem(is_gpt);
    const StateDict expected = testing::train_reference(task, options);
    for (const bool dynamic : {false, true}) {
      const FullyShardOptions sharding{
          .sharding_strategy = ShardingStrategy::HYBRID_SHARD, .rules = rules, .dynamic = dynamic};
      const auto hybrid = [&](comm::World& world) {
        expect_hybrid(task, world, world.mesh({.replicate = 2}), sharding, expected, options);
      };
      testing::run_on_hosts(2, 2, hybrid);
      testing::run_over_gloo(4, hybrid);
    }
  }
}

// Passes without sync, of which the last uses fewer parameters, and gradients that add up over two
// rounds.
TEST(Network, AccumulatesWithAndWithoutSync) {
  for (const bool dynamic : {false, true}) {
    const Problem task = problem(true);
    const auto reference = task.build();
    for (int step = 0; step < 4; ++step) {
      const auto batch = task.batch(step);
      reference->loss(batch.x, batch.y).backward();
    }
    testing::run_over_gloo(3, [&](comm::World& world) {
      const auto model = task.build();
      const auto sharded = fully_shard(model, world.mesh(), {.dynamic = dynamic});
      for (int step = 0; step < 4; ++step) {
        sharded.set_requires_gradient_sync(step % 2 == 1);
        const auto batch = testing::rows_of_rank(task.batch(step), world.rank(), world.size());
        model->loss(batch.x, batch.y).backward();
      }
      testing::expect_gradients_of(sharded, *reference);
      EXPECT_EQ(sharded.counters().unreduced_gradient_bytes, 0);
    });
  }
}

TEST(Network, WeightsThatLeaveARankNothing) {
  const Problem task = problem(false);
  const StateDict expected = testing::train_reference(task);
  testing::run_over_gloo(3, [&](comm::World& world) {
    const FullyShardOptions sharding{.shard_weights = {1, 0, 3}};
    testing::expect_match(testing::train_sharded(task, world, sharding), expected, 1e-10);
  });
}

TEST(Network, ScopesAndStateDictionaries) {
  const Problem task = problem(true);
  testing::run_over_gloo(2, [&](comm::World& world) {
    const auto model = task.build();
    const StateDict before = testing::parameters_of(*model);
    const auto sharded = fully_shard(model, world.mesh());
    testing::expect_bitwise_equal(sharded.full_state_dict(), before);
    {
      const at::NoGradGuard no_grad;
      auto scope = sharded.unsharded(UnshardedMode::kWrite);
      for (const at::Tensor& parameter : model->parameters()) parameter.add_(1);
      scope.close();
    }
    StateDict raised;
    for (const auto& [name, value] : before) {
      raised[name] = name == "table.weight" || name == "head.weight" ? value + 2 : value + 1;
    }
    testing::expect_match(sharded.full_state_dict(), raised, 1e-12);
    sharded.load_state_dict(before);
    testing::expect_bitwise_equal(sharded.full_state_dict(), before);
    EXPECT_EQ(sharded.full_state_dict(/*rank0_only=*/true).empty(), world.rank() != 0);
  });
}

// Each unit is gathered for forward and for backward and reduced once; nothing of it stays.
TEST(Network, CountsAndLetsGo) {
  const Problem task = problem(false);
  testing::run_over_gloo(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    testing::train_steps(*model, sharded, world, task, {.steps = 3});
    const Counters before = sharded.counters();
    testing::train_steps(*model, sharded, world, task, {.steps = 1});
    const Counters after = sharded.counters();
    std::int64_t others = 0;
    std::int64_t gathered = 0;
    for (std::size_t u = 0; u < after.units.size(); ++u) {
      const auto gathers = after.units[u].all_gathers - before.units[u].all_gathers;
      EXPECT_GE(gathers, 1);
      EXPECT_LE(gathers, 2);
      EXPECT_EQ(after.units[u].reduce_scatters - before.units[u].reduce_scatters, 1);
      others += after.units[u].bytes;
      gathered += gathers * after.units[u].bytes;
    }
    EXPECT_GT(after.all_gather_bytes, before.all_gather_bytes);
    EXPECT_LT(after.all_gather_bytes - before.all_gather_bytes, gathered);
    EXPECT_EQ(after.reduce_scatter_bytes - before.reduce_scatter_bytes,
              after.parameter_shard_bytes);
    EXPECT_LT(after.parameter_shard_bytes, others);
    EXPECT_EQ(after.live_unsharded_bytes, 0);
    EXPECT_EQ(after.unreduced_gradient_bytes, 0);
    EXPECT_LT(after.peak_unsharded_bytes, others);
  });
}

}  // namespace
}  // namespace fullshard::shard
