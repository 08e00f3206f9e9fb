#include <gtest/gtest.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "fullshard/base/error.h"
#include "support/networks.h"
#include "support/training.h"

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

// What each rank would have by itself, averaged.
StateDict mean_of_ranks(const Problem& task, const std::vector<std::int64_t>& steps, int ranks) {
  StateDict mean;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto plain = task.build();
    for (const std::int64_t step : steps) {
      const Batch batch = rows_of_rank(task.batch(step), rank, ranks);
      plain->loss(batch.x, batch.y).backward();
    }
    for (const auto& item : plain->named_parameters()) {
      const at::Tensor part = item.value().grad().flatten() / ranks;
      mean[item.key()] = rank == 0 ? part : mean[item.key()] + part;
    }
  }
  return mean;
}

class Averaging
    : public ::testing::TestWithParam<std::tuple<at::ScalarType, ShardingStrategy, bool>> {};

TEST_P(Averaging, B2_GradientsAreTheMeanOverRanks) {
  const auto [dtype, strategy, deferred] = GetParam();
  const Problem task = testing::mlp_problem({5, 7, 3}, dtype);
  const std::vector<std::int64_t> steps =
      deferred ? std::vector<std::int64_t>{0, 1, 2} : std::vector<std::int64_t>{0};
  const StateDict mean = mean_of_ranks(task, steps, 4);
  testing::run_on_every_backend(4, [&, chosen = strategy, type = dtype](comm::World& world) {
    const auto model = task.build();
    const int replicas = chosen == ShardingStrategy::HYBRID_SHARD ? 2 : 1;
    const auto sharded =
        fully_shard(model, world.mesh({.replicate = replicas}), {.sharding_strategy = chosen});
    for (const std::int64_t step : steps) {
      sharded.set_requires_gradient_sync(step == steps.back());
      const Batch batch = rows_of_rank(task.batch(step), world.rank(), world.size());
      model->loss(batch.x, batch.y).backward();
    }
    const double tolerance = type == at::kDouble ? 1e-12 : 1e-6;
    for (const auto& shard : sharded.named_parameters()) {
      const at::Tensor expected =
          mean.at(shard.name).narrow(0, shard.begin, shard.end - shard.begin);
      EXPECT_TRUE(at::allclose(shard.tensor.grad(), expected, tolerance, tolerance)) << shard.name;
    }
  });
}

constexpr std::array kEveryStrategy = {
    ShardingStrategy::FULL_SHARD, ShardingStrategy::SHARD_GRAD_OP, ShardingStrategy::NO_SHARD,
    ShardingStrategy::HYBRID_SHARD, ShardingStrategy::SHARD_OPTIMIZER_ONLY};

INSTANTIATE_TEST_SUITE_P(Behaviours, Averaging,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kDouble),
                                            ::testing::ValuesIn(kEveryStrategy),
                                            ::testing::Bool()));

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
    const int replicas = strategy == ShardingStrategy::HYBRID_SHARD ? 2 : 1;
    const auto sharded =
        fully_shard(model, world.mesh({.replicate = replicas}), {.sharding_strategy = strategy});
    const Batch batch = rows_of_rank(task.batch(0), world.rank(), world.size());
    {
      const at::NoGradGuard no_grad;
      model->loss(batch.x, batch.y);
    }
    const auto after = testing::stock_optimizer(kind, model->parameters());
    const auto right = testing::stock_optimizer(kind, sharded.parameters());
    model->loss(batch.x, batch.y).backward();
    for (torch::optim::Optimizer* wrong : {before.get(), after.get()}) {
      try {
        wrong->step();
        ADD_FAILURE() << "stepped without an error";
      } catch (const base::Error& error) {
        EXPECT_NE(std::string(error.what()).find("sharded.parameters()"), std::string::npos);
      }
    }
    right->step();
    testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
  });
}

INSTANTIATE_TEST_SUITE_P(Behaviours, OptimizerMadeLate,
                         ::testing::Combine(::testing::Values(testing::Optimizer::kSgd,
                                                              testing::Optimizer::kAdam),
                                            ::testing::ValuesIn(kEveryStrategy)));

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
      for (const auto& shard : sharded.named_parameters()) {
        const at::Tensor whole = reference->named_parameters()[shard.name].grad().flatten();
        const at::Tensor expected = whole.narrow(0, shard.begin, shard.end - shard.begin);
        EXPECT_TRUE(at::allclose(shard.tensor.grad(), expected, 1e-10, 1e-12)) << shard.name;
      }
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
    for (const auto& shard : sharded.named_parameters()) {
      const at::Tensor all = reference->named_parameters()[shard.name].grad().flatten();
      const at::Tensor expected = all.narrow(0, shard.begin, shard.end - shard.begin);
      EXPECT_TRUE(at::allclose(shard.tensor.grad(), expected, 1e-10, 1e-12)) << shard.name;
    }
  });
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

struct Outputs {
  at::Tensor first;
  std::vector<at::Tensor> more;
};

struct Containers : testing::Model {
  Containers() {
    for (int i = 0; i < 5; ++i) layers->push_back(torch::nn::Linear(4, 4));
    register_module("layers", layers);
    to(at::kDouble);
  }
  at::Tensor run(std::size_t i, const at::Tensor& x) {
    return torch::tanh(layers[i]->as<torch::nn::Linear>()->forward(x));
  }
  std::tuple<at::Tensor, at::Tensor> as_tuple(const at::Tensor& x) { return {run(0, x), x * 2}; }
  std::vector<at::Tensor> as_vector(const at::Tensor& x) { return {run(1, x), x}; }
  std::map<std::string, at::Tensor> as_map(const at::Tensor& x) { return {{"out", run(2, x)}}; }
  Outputs as_struct(const at::Tensor& x) { return {run(3, x), {x * x, run(3, x * x)}}; }
  std::optional<at::Tensor> as_optional(const at::Tensor& x) { return run(4, x); }

  // The subset of outputs that the loss uses changes from step to step.
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    const int choice = step++;
    at::Tensor sum = at::zeros({}, at::kDouble);
    if (choice % 2 == 0) sum = sum + std::get<0>(as_tuple(x)).mean();
    if (choice % 3 != 1) sum = sum + as_vector(x)[0].pow(2).mean();
    if (choice % 3 != 2) sum = sum + as_map(x).at("out").mean();
    const Outputs outputs = as_struct(x);
    sum = sum + (choice % 2 == 0 ? outputs.more[1] : outputs.first).mean();
    if (const auto last = as_optional(x)) sum = sum + (*last - y).pow(2).mean();
    return sum;
  }
  torch::nn::ModuleList layers;
  int step = 0;
};

TEST(Behaviours, B11_OutputsInContainers) {
  Problem task = testing::mlp_problem({4, 4, 4, 4, 4, 4});
  task.build = [] { return testing::build_seeded([] { return std::make_shared<Containers>(); }); };
  const testing::TrainOptions options{.steps = 7};
  const StateDict expected = testing::train_reference(task, options);
  comm::run_as_threads(2, [&](comm::World& world) {
    testing::expect_match(testing::train_sharded(task, world, {}, options), expected, 1e-10);
  });
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
