#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "support/training.h"

// Promise 1: sharded training equals unsharded training.

namespace fullshard::shard {
namespace {

using testing::expect_match;
using testing::Optimizer;
using testing::Problem;
using testing::TrainOptions;

enum class Kind { kMlp, kGpt, kTiedGpt };

Problem problem(Kind kind, at::ScalarType dtype) {
  switch (kind) {
    case Kind::kMlp: return testing::mlp_problem({7, 13, 13, 5}, dtype);
    case Kind::kGpt: return testing::gpt_problem(17, 6, 3, false, dtype);
    case Kind::kTiedGpt: return testing::gpt_problem(17, 6, 3, true, dtype);
  }
  return {};
}

using Point = std::tuple<Kind, int, ShardingStrategy, Optimizer>;

class Equality : public ::testing::TestWithParam<Point> {};

TEST_P(Equality, Fp64) {
  const auto [kind, ranks, strategy, optimizer] = GetParam();
  const Problem task = problem(kind, at::kDouble);
  const TrainOptions options{.steps = 4, .optimizer = optimizer, .max_norm = 0.5};
  const StateDict expected = testing::train_reference(task, options);
  comm::run_as_threads(ranks, [&, chosen = strategy](comm::World& world) {
    const FullyShardOptions sharding{.sharding_strategy = chosen};
    expect_match(testing::train_sharded(task, world, sharding, options), expected, 1e-10);
  });
}

// Plain SGD: Adam's division by the root of a tiny square turns rounding into anything.
class Fp32Equality : public Equality {};
TEST_P(Fp32Equality, Sgd) {
  const auto [kind, ranks, strategy, optimizer] = GetParam();
  const Problem task = problem(kind, at::kFloat);
  const TrainOptions options{.steps = 3, .optimizer = optimizer};
  const StateDict expected = testing::train_reference(task, options);
  comm::run_as_threads(ranks, [&, chosen = strategy](comm::World& world) {
    const FullyShardOptions sharding{.sharding_strategy = chosen};
    expect_match(testing::train_sharded(task, world, sharding, options), expected, 1e-5);
  });
}

std::string name_of(const ::testing::TestParamInfo<Point>& info) {
  const auto [kind, ranks, strategy, optimizer] = info.param;
  static constexpr const char* kKinds[] = {"Mlp", "Gpt", "TiedGpt"};
  static constexpr const char* kStrategies[] = {"FullShard", "ShardGradOp", "NoShard"};
  static constexpr const char* kOptimizers[] = {"Sgd", "Adam", "AdamW", "FusedAdamW"};
  return std::string(kKinds[static_cast<int>(kind)]) + "_R" + std::to_string(ranks) + "_" +
         kStrategies[static_cast<int>(strategy)] + "_" + kOptimizers[static_cast<int>(optimizer)];
}

const auto kStrategies = ::testing::Values(
    ShardingStrategy::FULL_SHARD, ShardingStrategy::SHARD_GRAD_OP, ShardingStrategy::NO_SHARD);
const auto kKinds = ::testing::Values(Kind::kMlp, Kind::kGpt, Kind::kTiedGpt);
const auto kRanks = ::testing::Values(1, 2, 3, 4);

INSTANTIATE_TEST_SUITE_P(Grid, Fp32Equality,
                         ::testing::Combine(kKinds, kRanks, kStrategies,
                                            ::testing::Values(Optimizer::kSgd)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Grid, Equality,
                         ::testing::Combine(kKinds, kRanks, kStrategies,
                                            ::testing::Values(Optimizer::kSgd, Optimizer::kAdamW,
                                                              Optimizer::kFusedAdamW)),
                         name_of);

TEST(Accumulation, MicroBatchesAddUpAsInUnshardedTraining) {
  const Problem task = problem(Kind::kGpt, at::kDouble);
  const auto reference = task.build();
  for (int step = 0; step < 3; ++step) {
    const auto batch = task.batch(step);
    reference->loss(batch.x, batch.y).backward();
  }
  comm::run_as_threads(3, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    for (int step = 0; step < 3; ++step) {
      const auto batch = testing::rows_of_rank(task.batch(step), world.rank(), world.size());
      model->loss(batch.x, batch.y).backward();
    }
    for (const auto& parameter : sharded.named_parameters()) {
      const at::Tensor whole = reference->named_parameters()[parameter.name].grad().flatten();
      const at::Tensor expected = whole.narrow(0, parameter.begin, parameter.end - parameter.begin);
      EXPECT_TRUE(at::allclose(parameter.tensor.grad(), expected, 1e-10, 1e-12)) << parameter.name;
    }
  });
}

TEST(Deviation, AUnitThatIsSkippedInSomeStepsIsNoError) {
  struct Choosy : testing::Model {
    Choosy() : a(4, 4), b(4, 4) {
      layers->push_back(a);
      layers->push_back(b);
      register_module("layers", layers);
      to(at::kDouble);
    }
    at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
      const at::Tensor h = step++ % 2 == 0 ? a(b(x)) : b(x);
      return (h - y).pow(2).mean();
    }
    torch::nn::Linear a, b;
    torch::nn::ModuleList layers;
    int step = 0;
  };
  Problem task = testing::mlp_problem({4, 4});
  task.build = [] { return testing::build_seeded([] { return std::make_shared<Choosy>(); }); };
  const TrainOptions options{.steps = 5, .optimizer = Optimizer::kAdamW};
  const StateDict expected = testing::train_reference(task, options);
  comm::run_as_threads(2, [&](comm::World& world) {
    expect_match(testing::train_sharded(task, world, {}, options), expected, 1e-10);
  });
}

}  // namespace
}  // namespace fullshard::shard
