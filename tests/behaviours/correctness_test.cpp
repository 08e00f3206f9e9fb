#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "support/equality.h"
#include "support/networks.h"

// B: correctness and numerics.

namespace fullshard::shard {
namespace {

using testing::Batch;
using testing::Problem;
using testing::rows_of_rank;

struct Scale : torch::nn::Module {
  Scale() { factor = register_parameter("factor", at::full({1}, 1.5, at::kDouble)); }
  at::Tensor factor;
};

struct Nested : testing::Model {
  Nested() {
    factor = register_parameter("factor", at::full({1}, 0.5, at::kDouble));
    register_module("inner", inner);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    return (x * factor * inner->factor - y).pow(2).mean();
  }
  at::Tensor factor;
  std::shared_ptr<Scale> inner = std::make_shared<Scale>();
};

Problem nested_problem() {
  Problem task = testing::mlp_problem({3, 3});
  task.build = [] { return std::make_shared<Nested>(); };
  return task;
}

TEST(Behaviours, B1_AParameterOfOneElementTrains) {
  const Problem task = nested_problem();
  const testing::TrainOptions options{.steps = 3, .optimizer = testing::Optimizer::kSgd};
  const StateDict expected = testing::train_reference(task, options);
  for (const int ranks : {1, 2}) {
    comm::run_as_threads(ranks, [&](comm::World& world) {
      const FullyShardOptions sharding{.auto_wrap_policy = wrap_modules<Scale>()};
      testing::expect_match(testing::train_sharded(task, world, sharding, options), expected,
                            1e-10);

      const auto model = task.build();
      const auto sharded = fully_shard(model, world.mesh(), sharding);
      const Batch batch = rows_of_rank(task.batch(0), world.rank(), world.size());
      model->loss(batch.x, batch.y).backward();
      for (const auto& shard : sharded.named_parameters()) {
        ASSERT_TRUE(shard.tensor.grad().defined()) << shard.name;
        if (shard.begin < shard.end) {
          EXPECT_NE(shard.tensor.grad().item<double>(), 0) << shard.name;
        }
      }
    });
  }
}

struct TwoHeads : testing::Model {
  TwoHeads() {
    for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(6, 6));
    register_module("layers", layers);
    to(at::kDouble);
  }
  std::pair<at::Tensor, at::Tensor> heads(const at::Tensor& x) {
    const at::Tensor trunk = torch::tanh(layers[0]->as<torch::nn::Linear>()->forward(x));
    return {layers[1]->as<torch::nn::Linear>()->forward(trunk).pow(2).mean(),
            layers[2]->as<torch::nn::Linear>()->forward(trunk).abs().mean()};
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor&) override { return heads(x).first; }
  torch::nn::ModuleList layers;
};

TEST(Behaviours, B9_SecondBackwardOverARetainedGraph) {
  const at::Tensor x = testing::mlp_problem({6, 6}).batch(0).x;
  const auto build = [] {
    return std::static_pointer_cast<TwoHeads>(
        testing::build_seeded([] { return std::make_shared<TwoHeads>(); }));
  };
  const auto reference = build();
  reference->heads(x).second.backward();
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = build();
    const auto sharded = fully_shard(model, world.mesh());
    const auto [a, b] = model->heads(rows_of_rank({x, x}, world.rank(), 2).x);
    a.backward({}, /*retain_graph=*/true);
    sharded.zero_grad();
    b.backward();
    for (const auto& shard : sharded.named_parameters()) {
      const at::Tensor whole = reference->named_parameters()[shard.name].grad();
      ASSERT_EQ(shard.tensor.grad().defined(), whole.defined()) << shard.name;
      if (!whole.defined()) continue;
      const at::Tensor expected = whole.flatten().narrow(0, shard.begin, shard.end - shard.begin);
      EXPECT_TRUE(at::allclose(shard.tensor.grad(), expected, 1e-10, 1e-12)) << shard.name;
    }
  });
}

// An auxiliary loss reads norm and head, which are one unit, before the blocks; the loss does
// behind.
struct EarlyLoss : testing::Model {
  EarlyLoss() : first(6, 6), norm(torch::nn::LayerNormOptions({6})), head(6, 6) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("head", head);
    for (int i = 0; i < 2; ++i) blocks->push_back(torch::nn::Linear(6, 6));
    register_module("blocks", blocks);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    at::Tensor h = torch::tanh(first(x));
    const at::Tensor early = head(norm(h));
    for (const auto& block : *blocks) {
      h = h + torch::tanh(block->as<torch::nn::Linear>()->forward(h));
    }
    return (head(norm(h)) - y).pow(2).mean() + 0.3 * (early - y).abs().mean();
  }
  torch::nn::Linear first;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
  torch::nn::ModuleList blocks;
};

TEST(Behaviours, B15_AModuleOfAGroupedUnitIsUsedAgain) {
  const Problem task = testing::problem_of<EarlyLoss>(6, 6);
  constexpr std::int64_t kSteps = 4;
  const StateDict expected = testing::train_reference(task, {.steps = kSteps});
  for (const auto strategy : {ShardingStrategy::FULL_SHARD, ShardingStrategy::SHARD_GRAD_OP,
                              ShardingStrategy::SHARD_OPTIMIZER_ONLY}) {
    testing::run_both_ways(2, [&](comm::World& world) {
      const auto model = task.build();
      const auto sharded = fully_shard(
          model, world.mesh(),
          {.auto_wrap_policy = with_groups(wrap_named({"blocks.*"}), {{"norm", "head"}}),
           .sharding_strategy = strategy});
      testing::train_steps(*model, sharded, world, task, {.steps = kSteps});
      testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
      const auto units = sharded.counters().units;
      const auto group = std::find_if(units.begin(), units.end(), [](const UnitCounters& unit) {
        return unit.name == "norm + head";
      });
      ASSERT_NE(group, units.end());
      // It had left before it was used again: for the first use, the second, and the first's
      // backward.
      if (strategy == ShardingStrategy::FULL_SHARD) EXPECT_GE(group->all_gathers, 3 * kSteps);
    });
  }
}

TEST(Behaviours, B14_RunsAreRepeatableAndStrategiesAgree) {
  const Problem task = testing::mlp_problem({9, 17, 4}, at::kFloat);
  const testing::TrainOptions options{.steps = 20, .optimizer = testing::Optimizer::kAdam};
  for (const int threads : {1, 2}) {  // docs/reproducibility.md: with any number, kept the same
    testing::run_both_ways(2, [&](comm::World& world) {
      at::set_num_threads(threads);
      const auto run = [&](ShardingStrategy strategy) {
        return testing::train_sharded(task, world, {.sharding_strategy = strategy}, options);
      };
      const StateDict first = run(ShardingStrategy::FULL_SHARD);
      testing::expect_bitwise_equal(run(ShardingStrategy::FULL_SHARD), first);
      testing::expect_match(run(ShardingStrategy::NO_SHARD), first, 1e-6);
    });
  }
}

}  // namespace
}  // namespace fullshard::shard
