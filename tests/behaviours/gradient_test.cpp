#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "support/equality.h"
#include "support/networks.h"
#include "support/training.h"

// A5, F: gradient accumulation and clipping.

namespace fullshard::shard {
namespace {

using testing::TrainOptions;

class Clipping : public ::testing::TestWithParam<double> {};

TEST_P(Clipping, F1_OneNormOverAllRanks) {
  const auto task = testing::mlp_problem({5, 11, 3});
  const auto plain = task.build();
  const auto batch = task.batch(0);
  plain->loss(batch.x, batch.y).backward();
  const double norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 1e9, GetParam());

  std::vector<double> expected_norms;
  const TrainOptions reference{
      .steps = 2,
      .max_norm = norm / 2,
      .norm_type = GetParam(),
      .on_norm = [&](std::int64_t, double n) { expected_norms.push_back(n); }};
  const StateDict expected = testing::train_reference(task, reference);
  EXPECT_NEAR(expected_norms[0], norm, 1e-12);

  comm::run_as_threads(4, [&](comm::World& world) {
    TrainOptions options = reference;
    std::vector<double> norms;
    options.on_norm = [&](std::int64_t, double n) { norms.push_back(n); };
    testing::expect_match(testing::train_sharded(task, world, {}, options), expected, 1e-10);
    ASSERT_EQ(norms.size(), expected_norms.size());
    for (std::size_t i = 0; i < norms.size(); ++i) {
      EXPECT_NEAR(norms[i], expected_norms[i], 1e-10);
    }
    // The same bits on every rank.
    std::vector<double> all(4);
    world.group()
        .all_gather({norms.data(), 1, base::DType::kFloat64},
                    {all.data(), 4, base::DType::kFloat64}, {}, {})
        .wait();
    for (const double other : all) EXPECT_EQ(other, norms[0]);
  });
}

struct Table : testing::Model {
  Table() { weight = register_parameter("weight", at::zeros({1 << 22})); }
  at::Tensor loss(const at::Tensor& x, const at::Tensor&) override { return (weight * x).sum(); }
  at::Tensor weight;
};

// Squares of fp32, added up in fp32, would be wrong in the fourth digit.
TEST(GradientNorm, OfMillionsOfElementsIsPrecise) {
  comm::run_as_threads(2, [](comm::World& world) {
    const auto model = std::make_shared<Table>();
    const auto sharded =
        fully_shard(std::static_pointer_cast<torch::nn::Module>(model), world.mesh());
    const at::Tensor x = at::linspace(0.1, 0.3, 1 << 22);
    model->loss(x, {}).backward();
    const double expected = x.to(at::kDouble).norm().item<double>();
    EXPECT_NEAR(sharded.grad_norm() / expected, 1, 1e-6);
  });
}

// The gradient that unsharded training would have after `steps` batches, flattened, by name.
StateDict accumulated(const testing::Problem& task, int steps) {
  const auto plain = task.build();
  for (int step = 0; step < steps; ++step) {
    const auto batch = task.batch(step);
    plain->loss(batch.x, batch.y).backward();
  }
  StateDict out;
  for (const auto& item : plain->named_parameters())
    out[item.key()] = item.value().grad().flatten();
  return out;
}

void expect_gradients(const ShardedModule& sharded, const StateDict& expected, double factor = 1) {
  for (const auto& shard : sharded.named_parameters()) {
    const at::Tensor part =
        expected.at(shard.name).narrow(0, shard.begin, shard.end - shard.begin) * factor;
    EXPECT_TRUE(at::allclose(shard.tensor.grad(), part, 1e-10, 1e-12))
        << shard.name << "\n"
        << shard.tensor.grad() << "\n"
        << part;
  }
}

// Parameters after unsharded training whose every step adds up the gradients of a window of
// micro-batches.
StateDict trained_in_windows(const testing::Problem& task, int windows, int micro_batches) {
  const auto model = task.build();
  const auto optimizer =
      testing::stock_optimizer(testing::Optimizer::kAdamW, testing::unique_parameters(*model));
  for (int window = 0; window < windows; ++window) {
    optimizer->zero_grad();
    for (int step = 0; step < micro_batches; ++step) {
      const auto batch = task.batch(step);
      model->loss(batch.x, batch.y).backward();
    }
    optimizer->step();
  }
  return testing::parameters_of(*model);
}

TEST(Behaviours, A5_BothWaysToAccumulate) {
  const auto task = testing::mlp_problem({32, 64, 8});
  constexpr int kMicroBatches = 4;
  const StateDict expected = accumulated(task, kMicroBatches);
  const StateDict trained = trained_in_windows(task, 1, kMicroBatches);
  const auto accumulate = [&](comm::World& world, bool deferred,
                              const FullyShardOptions& sharding) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh(), sharding);
    const auto optimizer =
        testing::stock_optimizer(testing::Optimizer::kAdamW, sharded.parameters());
    for (int step = 0; step < kMicroBatches; ++step) {
      const bool last = step + 1 == kMicroBatches;
      sharded.set_requires_gradient_sync(!deferred || last);
      const auto batch = testing::rows_of_rank(task.batch(step), world.rank(), world.size());
      model->loss(batch.x, batch.y).backward();
      world.group().barrier({});
      if (!deferred || last) {
        EXPECT_EQ(sharded.counters().unreduced_gradient_bytes, 0);
        EXPECT_LE(sharded.counters().gradient_bytes, sharded.counters().parameter_shard_bytes);
      } else {
        EXPECT_EQ(sharded.counters().gradient_bytes, 0);
        EXPECT_GT(sharded.counters().unreduced_gradient_bytes, 0);
      }
      world.group().barrier({});
    }
    for (const UnitCounters& unit : sharded.counters().units) {
      EXPECT_EQ(unit.reduce_scatters, deferred ? 1 : kMicroBatches) << unit.name;
    }
    expect_gradients(sharded, expected);
    optimizer->step();
    testing::expect_match(sharded.full_state_dict(), trained, 1e-10);
  };
  testing::run_both_ways(2, [&](comm::World& world) {
    for (const bool deferred : {false, true}) {
      accumulate(world, deferred, {});
      accumulate(world, deferred, {.forward_prefetch = 2, .backward_prefetch = 2});
    }
  });
}

TEST(Behaviours, P4_OneReductionAWindowWhenDeferred) {
  const auto task = testing::gpt_problem(17, 6, 2);
  constexpr int kWindow = 8;
  constexpr int kWindows = 2;
  const StateDict trained = trained_in_windows(task, kWindows, kWindow);
  testing::run_both_ways(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    const auto optimizer =
        testing::stock_optimizer(testing::Optimizer::kAdamW, sharded.parameters());
    for (int window = 1; window <= kWindows; ++window) {
      optimizer->zero_grad();
      for (int step = 0; step < kWindow; ++step) {
        sharded.set_requires_gradient_sync(step + 1 == kWindow);
        const auto batch = testing::rows_of_rank(task.batch(step), world.rank(), world.size());
        model->loss(batch.x, batch.y).backward();
      }
      for (const UnitCounters& unit : sharded.counters().units) {
        EXPECT_EQ(unit.reduce_scatters, window) << unit.name;
      }
      optimizer->step();
    }
    testing::expect_match(sharded.full_state_dict(), trained, 1e-10);
  });
}

TEST(Behaviours, A5_ZeroGradDropsWhatWasNotSynchronised) {
  const auto task = testing::mlp_problem({5, 7, 3});
  const StateDict expected = accumulated(task, 1);
  for (const int ranks : {1, 2}) {
    comm::run_as_threads(ranks, [&](comm::World& world) {
      const auto model = task.build();
      const auto sharded = fully_shard(model, world.mesh());
      for (const bool sync : {false, true}) {
        sharded.set_requires_gradient_sync(sync);
        sharded.zero_grad();
        const auto batch = testing::rows_of_rank(task.batch(0), world.rank(), world.size());
        model->loss(batch.x, batch.y).backward();
      }
      expect_gradients(sharded, expected);
    });
  }
}

using Clear = std::function<void(testing::Model&, const ShardedModule&, torch::optim::Optimizer&)>;

// Runs a backward pass for each entry: with sync or without, after `clear` or not. The reference
// does so with `clear_plain` and accumulates in .grad as ever.
struct Pass {
  bool sync;
  bool clear;
};

void expect_cleared_alike(const std::vector<Pass>& passes, const Clear& clear,
                          const std::function<void(testing::Model&)>& clear_plain) {
  const auto task = testing::mlp_problem({5, 7, 3});
  const auto plain = task.build();
  for (std::size_t i = 0; i < passes.size(); ++i) {
    if (passes[i].clear) clear_plain(*plain);
    const auto batch = task.batch(static_cast<std::int64_t>(i));
    plain->loss(batch.x, batch.y).backward();
  }
  const auto run = [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh(),
                                     {.auto_wrap_policy = wrap_modules<torch::nn::LinearImpl>()});
    const auto optimizer = testing::stock_optimizer(testing::Optimizer::kSgd, sharded.parameters());
    for (std::size_t i = 0; i < passes.size(); ++i) {
      if (passes[i].clear) clear(*model, sharded, *optimizer);
      sharded.set_requires_gradient_sync(passes[i].sync);
      const auto batch = testing::rows_of_rank(task.batch(static_cast<std::int64_t>(i)),
                                               world.rank(), world.size());
      model->loss(batch.x, batch.y).backward();
    }
    testing::expect_gradients_of(sharded, *plain);
  };
  testing::run_both_ways(1, run);
  testing::run_both_ways(2, run);
}

void clear_one_layer(torch::nn::Module& model, bool set_to_none) {
  model.named_modules()["layers.1"]->zero_grad(set_to_none);
}

// Two micro-batches without sync, one layer's gradients cleared, a third one that reduces the sum:
// the other layer keeps all three.
TEST(Behaviours, A5_ClearingOneModuleLeavesTheOthersTheirUnsynchronisedGradients) {
  for (const bool set_to_none : {true, false}) {
    SCOPED_TRACE(set_to_none);
    expect_cleared_alike(
        {{.sync = false}, {.sync = false}, {.sync = true, .clear = true}},
        [=](testing::Model& model, const ShardedModule&, torch::optim::Optimizer&) {
          clear_one_layer(model, set_to_none);
        },
        [=](testing::Model& model) { clear_one_layer(model, set_to_none); });
  }
}

TEST(Behaviours, A5_ClearingTheModuleClearsReducedAndUnsynchronisedGradients) {
  for (const bool set_to_none : {true, false}) {
    SCOPED_TRACE(set_to_none);
    expect_cleared_alike(
        {{.sync = true}, {.sync = false}, {.sync = false, .clear = true}, {.sync = true}},
        [=](testing::Model& model, const ShardedModule&, torch::optim::Optimizer&) {
          model.zero_grad(set_to_none);
        },
        [=](testing::Model& model) { model.zero_grad(set_to_none); });
  }
}

// Documented: where there is a reduced gradient, an optimizer can say so too.
TEST(Behaviours, A5_ClearingByTheOptimizerDropsWhatWasAddedToAReducedGradient) {
  expect_cleared_alike(
      {{.sync = true}, {.sync = false}, {.sync = true, .clear = true}},
      [](testing::Model&, const ShardedModule&, torch::optim::Optimizer& optimizer) {
        optimizer.zero_grad();
      },
      [](testing::Model& model) { model.zero_grad(); });
}

// A part of the model that is cleared and then not used has no gradient.
TEST(Behaviours, A5_AClearedModuleThatIsNotUsedHasNoGradient) {
  const auto task = testing::mlp_problem({5, 7, 3});
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh(),
                                     {.auto_wrap_policy = wrap_modules<torch::nn::LinearImpl>()});
    const auto batch = testing::rows_of_rank(task.batch(0), world.rank(), world.size());
    const auto first = model->named_parameters()["layers.0.weight"];
    for (const bool sync : {true, false}) {
      sharded.set_requires_gradient_sync(sync);
      model->loss(batch.x, batch.y).backward();
    }
    clear_one_layer(*model, /*set_to_none=*/true);
    sharded.set_requires_gradient_sync(true);
    at::linear(batch.x, first).sum().backward();
    for (const auto& shard : sharded.named_parameters()) {
      EXPECT_EQ(shard.tensor.grad().defined(), shard.name.starts_with("layers.0.")) << shard.name;
    }
  });
}

TEST(Behaviours, A5_AGradientTheUserHasSetIsAddedTo) {
  const auto task = testing::mlp_problem({5, 7, 3});
  const StateDict once = accumulated(task, 1);
  StateDict expected;
  for (const auto& [name, gradient] : once) expected[name] = gradient * 3;
  for (const int ranks : {1, 2}) {
    comm::run_as_threads(ranks, [&](comm::World& world) {
      const auto model = task.build();
      const auto sharded = fully_shard(model, world.mesh());
      for (int pass = 0; pass < 2; ++pass) {
        const auto batch = testing::rows_of_rank(task.batch(0), world.rank(), world.size());
        model->loss(batch.x, batch.y).backward();
        for (const auto& shard : sharded.named_parameters()) {
          if (pass == 0) shard.tensor.mutable_grad() = shard.tensor.grad() * 2;
        }
      }
      expect_gradients(sharded, expected);
    });
  }
}

TEST(Behaviours, B6_EveryStrategyScalesGradientsAlike) {
  const auto task = testing::mlp_problem({5, 7, 3});
  const StateDict expected = accumulated(task, 1);
  double squares = 0;
  for (const auto& [name, gradient] : expected) squares += gradient.pow(2).sum().item<double>();
  const double norm = std::sqrt(squares);
  struct Mode {
    ShardingStrategy strategy;
    int replicate;
  };
  for (const Mode mode :
       {Mode{ShardingStrategy::NO_SHARD, 1}, Mode{ShardingStrategy::FULL_SHARD, 1},
        Mode{ShardingStrategy::HYBRID_SHARD, 2}}) {
    for (const double factor : {0.0, 300.0}) {
      testing::run_on_every_backend(4, [&](comm::World& world) {
        const auto model = task.build();
        const auto sharded =
            fully_shard(model, world.mesh({.replicate = mode.replicate}),
                        {.sharding_strategy = mode.strategy, .gradient_divide_factor = factor});
        const auto batch = testing::rows_of_rank(task.batch(0), world.rank(), world.size());
        model->loss(batch.x, batch.y).backward();
        const double scale = factor == 0 ? 1 : 4 / factor;
        expect_gradients(sharded, expected, scale);
        EXPECT_NEAR(sharded.grad_norm(), norm * scale, 1e-10);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Behaviours, Clipping,
                         ::testing::Values(1.0, 2.0, std::numeric_limits<double>::infinity()));

}  // namespace
}  // namespace fullshard::shard
