#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fullshard/base/error.h"
#include "support/equality.h"
#include "support/networks.h"
#include "support/training.h"

// B4: optimizers, and what they were built on.

namespace fullshard::shard {
namespace {

using testing::Batch;
using testing::Problem;
using testing::rows_of_rank;

constexpr std::array kEveryStrategy = {
    ShardingStrategy::FULL_SHARD, ShardingStrategy::SHARD_GRAD_OP, ShardingStrategy::NO_SHARD,
    ShardingStrategy::HYBRID_SHARD, ShardingStrategy::SHARD_OPTIMIZER_ONLY};

ShardedModule sharded_by(ShardingStrategy strategy, const std::shared_ptr<testing::Model>& model,
                         comm::World& world) {
  const int replicas = strategy == ShardingStrategy::HYBRID_SHARD ? 2 : 1;
  return fully_shard(model, world.mesh({.replicate = replicas}), {.sharding_strategy = strategy});
}

void expect_step_is_an_error(torch::optim::Optimizer& wrong,
                             const torch::optim::Optimizer::LossClosure& closure = nullptr) {
  try {
    wrong.step(closure);
    ADD_FAILURE() << "stepped without an error";
  } catch (const base::Error& error) {
    EXPECT_NE(std::string(error.what()).find("sharded.parameters()"), std::string::npos);
  }
}

class OptimizerMadeLate
    : public ::testing::TestWithParam<std::tuple<testing::Optimizer, ShardingStrategy>> {};

// An optimizer on the module's parameters, made before or after sharding and a first forward, is
// an error; one on the sharded parameters trains what unsharded training trains.
TEST_P(OptimizerMadeLate, B4_TrainsOrIsAnError) {
  const auto [kind, strategy] = GetParam();
  const Problem task = testing::mlp_problem({4, 4, 4});
  const StateDict expected = testing::train_reference(task, {.steps = 1, .optimizer = kind});
  comm::run_as_threads(2, [&, kind = kind, strategy = strategy](comm::World& world) {
    const auto model = task.build();
    const auto before = testing::stock_optimizer(kind, model->parameters());
    const auto sharded = sharded_by(strategy, model, world);
    const Batch batch = rows_of_rank(task.batch(0), world.rank(), world.size());
    {
      const at::NoGradGuard no_grad;
      model->loss(batch.x, batch.y);
    }
    const auto after = testing::stock_optimizer(kind, model->parameters());
    const auto right = testing::stock_optimizer(kind, sharded.parameters());
    model->loss(batch.x, batch.y).backward();
    expect_step_is_an_error(*before);
    expect_step_is_an_error(*after);
    right->step();
    testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
  });
}

// The usual loop on the module's parameters. Nothing is trained, and then the right optimizer
// trains as if there had been no other.
TEST_P(OptimizerMadeLate, B4_TheUsualLoopOnTheModulesParametersIsAnError) {
  const auto [kind, strategy] = GetParam();
  const Problem task = testing::mlp_problem({4, 4, 4});
  const StateDict start = testing::parameters_of(*task.build());
  const StateDict expected = testing::train_reference(task, {.steps = 1, .optimizer = kind});
  testing::run_both_ways(2, [&, kind = kind, strategy = strategy](comm::World& world) {
    const auto model = task.build();
    const auto before = testing::stock_optimizer(kind, model->parameters());
    const auto sharded = sharded_by(strategy, model, world);
    const auto after = testing::stock_optimizer(kind, model->parameters());
    const auto right = testing::stock_optimizer(kind, sharded.parameters());
    const Batch batch = rows_of_rank(task.batch(0), world.rank(), world.size());
    for (torch::optim::Optimizer* wrong : {before.get(), after.get()}) {
      for (const bool set_to_none : {true, false}) {
        wrong->zero_grad(set_to_none);
        model->loss(batch.x, batch.y).backward();
        expect_step_is_an_error(*wrong);
        testing::expect_bitwise_equal(sharded.full_state_dict(), start);
      }
    }
    right->zero_grad();
    model->loss(batch.x, batch.y).backward();
    right->step();
    testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
  });
}

INSTANTIATE_TEST_SUITE_P(Behaviours, OptimizerMadeLate,
                         ::testing::Combine(::testing::Values(testing::Optimizer::kSgd,
                                                              testing::Optimizer::kAdam,
                                                              testing::Optimizer::kAdamW),
                                            ::testing::ValuesIn(kEveryStrategy)));

TEST(Behaviours, B4_WhateverTheOptimizerOnTheModulesParameters) {
  using Parameters = std::vector<at::Tensor>;
  const std::vector<std::function<std::unique_ptr<torch::optim::Optimizer>(Parameters)>> makers = {
      [](Parameters p) { return std::make_unique<torch::optim::RMSprop>(std::move(p)); },
      [](Parameters p) { return std::make_unique<torch::optim::Adagrad>(std::move(p)); },
      [](Parameters p) { return std::make_unique<torch::optim::LBFGS>(std::move(p)); }};
  const Problem task = testing::mlp_problem({4, 4, 4});
  const StateDict start = testing::parameters_of(*task.build());
  testing::run_both_ways(2, [&](comm::World& world) {
    for (const auto& make : makers) {
      const auto model = task.build();
      const auto before = make(model->parameters());
      const auto sharded = fully_shard(model, world.mesh());
      const auto after = make(model->parameters());
      const Batch batch = rows_of_rank(task.batch(0), world.rank(), world.size());
      for (torch::optim::Optimizer* wrong : {before.get(), after.get()}) {
        expect_step_is_an_error(*wrong, [&] {
          wrong->zero_grad();
          at::Tensor loss = model->loss(batch.x, batch.y);
          loss.backward();
          return loss;
        });
        testing::expect_bitwise_equal(sharded.full_state_dict(), start);
      }
    }
  });
}

TEST(Behaviours, B4_ConvertingAShardedModelIsAnError) {
  const Problem task = testing::mlp_problem({4, 4, 4});
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    model->to(at::kDouble);  // what it is already
    const Batch batch = rows_of_rank(task.batch(0), world.rank(), world.size());
    model->loss(batch.x, batch.y).backward();
    model->to(at::kFloat);
    try {
      model->loss(batch.x.to(at::kFloat), batch.y.to(at::kFloat)).backward();
      ADD_FAILURE() << "trained without an error";
    } catch (const base::Error& error) {
      EXPECT_NE(std::string(error.what()).find("module->to()"), std::string::npos) << error.what();
    }
  });
}

// The module's own zero_grad means what it says, although the gradients lie elsewhere.
TEST(Behaviours, B4_TheModulesZeroGradClearsTheShards) {
  const Problem task = testing::mlp_problem({4, 4, 4});
  const auto reference = task.build();
  const Batch second = task.batch(1);
  reference->loss(second.x, second.y).backward();
  for (const bool set_to_none : {true, false}) {
    comm::run_as_threads(2, [&](comm::World& world) {
      const auto model = task.build();
      const auto sharded = fully_shard(model, world.mesh());
      for (const int step : {0, 1}) {
        model->zero_grad(set_to_none);
        const Batch batch = rows_of_rank(task.batch(step), world.rank(), world.size());
        model->loss(batch.x, batch.y).backward();
      }
      testing::expect_gradients_of(sharded, *reference);
    });
  }
}

TEST(Behaviours, B4_GradientsWithAGraphAreTakenOnce) {
  const Problem task = testing::mlp_problem({4, 4, 4});
  const auto reference = task.build();
  const Batch whole = task.batch(0);
  reference->loss(whole.x, whole.y).backward();
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    const Batch batch = rows_of_rank(whole, world.rank(), world.size());
    model->loss(batch.x, batch.y).backward({}, /*retain_graph=*/true, /*create_graph=*/true);
    testing::expect_gradients_of(sharded, *reference);
  });
}

}  // namespace
}  // namespace fullshard::shard
