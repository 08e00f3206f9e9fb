#include "support/equality.h"

#include <gtest/gtest.h>

#include "support/networks.h"

namespace fullshard::testing {
namespace {

void run_steps(Model& model, torch::optim::Optimizer& optimizer, const Problem& task,
               const Passes& passes, std::int64_t steps, Turn turn) {
  for (turn.step = 0; turn.step < steps; ++turn.step) {
    optimizer.zero_grad();
    passes(model, rows_of_rank(task.batch(turn.step), turn.rank, turn.size), turn);
    optimizer.step();
  }
}

}  // namespace

shard::StateDict train_passes(const Problem& task, const Passes& passes,
                              const TrainOptions& options) {
  const auto model = task.build();
  const auto optimizer = stock_optimizer(options.optimizer, unique_parameters(*model));
  run_steps(*model, *optimizer, task, passes, options.steps, {});
  return parameters_of(*model);
}

void expect_passes_give(const shard::StateDict& expected, const Problem& task, const Passes& passes,
                        const EqualityOptions& options) {
  const auto run_rank = [&](comm::World& world) {
    at::set_num_threads(1);  // what main() says of its thread
    const auto model = task.build();
    const auto sharded = shard::fully_shard(model, world.mesh(options.mesh), options.sharding);
    const auto optimizer = stock_optimizer(options.training.optimizer, sharded.parameters());
    run_steps(*model, *optimizer, task, passes, options.training.steps,
              {.rank = world.rank(), .size = world.size()});
    expect_match(sharded.full_state_dict(), expected, 1e-10);
  };
  if (options.everywhere) {
    run_on_every_backend(options.ranks, run_rank);
  } else if (options.over_gloo) {
    run_over_gloo(options.ranks, run_rank);
  } else {
    comm::run_as_threads(options.ranks, run_rank);
  }
}

void expect_equal_passes(const Problem& task, const Passes& passes,
                         const EqualityOptions& options) {
  expect_passes_give(train_passes(task, passes, options.training), task, passes, options);
}

void expect_equal_training(const Problem& task, const EqualityOptions& options) {
  const auto passes = [](Model& model, const Batch& batch, const Turn&) {
    model.loss(batch.x, batch.y).backward();
  };
  expect_equal_passes(task, passes, options);
}

void expect_equal_passes_for_strategies(const Problem& task, const Passes& passes,
                                        EqualityOptions options) {
  for (const auto strategy :
       {shard::ShardingStrategy::FULL_SHARD, shard::ShardingStrategy::SHARD_GRAD_OP,
        shard::ShardingStrategy::SHARD_OPTIMIZER_ONLY}) {
    SCOPED_TRACE(static_cast<int>(strategy));
    options.sharding.sharding_strategy = strategy;
    expect_equal_passes(task, passes, options);
  }
}

void expect_gradients_of(const shard::ShardedModule& sharded, const torch::nn::Module& plain) {
  const auto parameters = plain.named_parameters();
  for (const auto& shard : sharded.named_parameters()) {
    const at::Tensor& whole = parameters[shard.name].grad();
    ASSERT_EQ(shard.tensor.grad().defined(), whole.defined()) << shard.name;
    if (!whole.defined()) continue;
    const at::Tensor expected = part_of(shard, whole);
    EXPECT_TRUE(at::allclose(shard.tensor.grad(), expected, 1e-10, 1e-12)) << shard.name;
  }
}

}  // namespace fullshard::testing
