#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "support/networks.h"
#include "support/training.h"

// B2: every way to reduce gradients gives the mean of those of the ranks.

namespace fullshard::shard {
namespace {

using testing::Problem;

struct Reduction {
  std::string name;
  FullyShardOptions sharding;
  int replicate = 1;
};

void PrintTo(const Reduction& reduction, std::ostream* out) { *out << reduction.name; }

std::vector<Reduction> every_reduction() {
  constexpr std::int64_t kEverything = 1 << 20;
  constexpr auto kHybrid = ShardingStrategy::HYBRID_SHARD;
  const auto exact = compress_gradients_to(at::kDouble);  // loses nothing
  const std::vector<ParameterRule> whole_biases = {
      {.pattern = "*bias", .strategy = ShardingStrategy::NO_SHARD}};
  return {
      {"FullShard", {}},
      {"ShardGradOp", {.sharding_strategy = ShardingStrategy::SHARD_GRAD_OP}},
      {"NoShard", {.sharding_strategy = ShardingStrategy::NO_SHARD}},
      {"OptimizerOnly", {.sharding_strategy = ShardingStrategy::SHARD_OPTIMIZER_ONLY}},
      {"Hybrid", {.sharding_strategy = kHybrid}, 2},
      {"DivideFactor", {.gradient_divide_factor = 4}},
      {"PredivideFactor", {.gradient_predivide_factor = 3}},
      {"Buckets", {.rules = whole_biases, .reduce_bucket_bytes = kEverything}},
      {"Hook", {.rules = whole_biases, .communication_hook = exact}},
      {"Dynamic", {.rules = whole_biases, .dynamic = true}},
      {"HybridPredivideFactor", {.sharding_strategy = kHybrid, .gradient_predivide_factor = 3}, 2},
      {"HybridBuckets",
       {.sharding_strategy = kHybrid, .rules = whole_biases, .reduce_bucket_bytes = kEverything},
       2},
      {"HybridHook", {.sharding_strategy = kHybrid, .communication_hook = exact}, 2},
      {"HybridDynamic", {.sharding_strategy = kHybrid, .dynamic = true}, 2},
      {"UpdatesOverReplicas",
       {.sharding_strategy = kHybrid, .shard_optimizer_over_replicas = true},
       2},
      {"Everything",
       {.sharding_strategy = kHybrid,
        .rules = whole_biases,
        .gradient_divide_factor = 4,
        .dynamic = true,
        .reduce_bucket_bytes = kEverything,
        .shard_optimizer_over_replicas = true,
        .gradient_predivide_factor = 3,
        .communication_hook = exact},
       2}};
}

// What each rank would have by itself, averaged.
StateDict mean_of_ranks(const Problem& task, const std::vector<std::int64_t>& steps, int ranks) {
  StateDict mean;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto plain = task.build();
    for (const std::int64_t step : steps) {
      const auto batch = testing::rows_of_rank(task.batch(step), rank, ranks);
      plain->loss(batch.x, batch.y).backward();
    }
    for (const auto& item : plain->named_parameters()) {
      const at::Tensor part = item.value().grad() / ranks;
      mean[item.key()] = rank == 0 ? part : mean[item.key()] + part;
    }
  }
  return mean;
}

class Averaging : public ::testing::TestWithParam<std::tuple<at::ScalarType, Reduction>> {};

TEST_P(Averaging, B2_GradientsAreTheMeanOverRanks) {
  const auto& [dtype, reduction] = GetParam();
  const Problem task = testing::mlp_problem({5, 7, 3}, dtype);
  const double tolerance = dtype == at::kDouble ? 1e-12 : 1e-6;
  // One pass, then one reduction of several.
  const std::vector<std::vector<std::int64_t>> windows = {{0}, {1, 2, 3}};
  std::vector<StateDict> means;
  for (const auto& window : windows) means.push_back(mean_of_ranks(task, window, 4));
  testing::run_on_every_backend(4, [&, &chosen = reduction](comm::World& world) {
    const auto model = task.build();
    const auto sharded =
        fully_shard(model, world.mesh({.replicate = chosen.replicate}), chosen.sharding);
    for (std::size_t i = 0; i < windows.size(); ++i) {
      sharded.zero_grad();
      for (const std::int64_t step : windows[i]) {
        sharded.set_requires_gradient_sync(step == windows[i].back());
        const auto batch = testing::rows_of_rank(task.batch(step), world.rank(), world.size());
        model->loss(batch.x, batch.y).backward();
      }
      for (const auto& shard : sharded.named_parameters()) {
        const at::Tensor expected = part_of(shard, means[i].at(shard.name));
        EXPECT_TRUE(at::allclose(shard.tensor.grad(), expected, tolerance, tolerance))
            << shard.name << " in window " << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Behaviours, Averaging,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kDouble),
                                            ::testing::ValuesIn(every_reduction())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name +
                                  c10::toString(std::get<0>(info.param));
                         });

}  // namespace
}  // namespace fullshard::shard
