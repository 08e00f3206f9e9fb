#pragma once

#include <functional>

#include "support/training.h"

// Whole training runs, sharded and not, whose steps are more than one forward and one backward.

namespace fullshard::testing {

/// Whose turn it is: in the unsharded run rank 0 of 1, with the whole batch.
struct Turn {
  std::int64_t step = 0;
  int rank = 0;
  int size = 1;
};

/// The forward and backward passes of one step over this rank's rows. Gradients of the ranks are
/// averaged, so what it minimises must be a mean over rows.
using Passes = std::function<void(Model&, const Batch&, const Turn&)>;

struct EqualityOptions {
  int ranks = 2;
  TrainOptions training = {};  ///< clipping is not used
  shard::FullyShardOptions sharding = {};
  comm::MeshOptions mesh = {};
  bool over_gloo = false;   ///< ranks that do not share memory
  bool everywhere = false;  ///< over every backend, one after the other
};

/// Parameters after unsharded training with these passes.
shard::StateDict train_passes(const Problem& task, const Passes& passes,
                              const TrainOptions& options = {});

/// Trains sharded and expects the parameters `expected` to 1e-10.
void expect_passes_give(const shard::StateDict& expected, const Problem& task, const Passes& passes,
                        const EqualityOptions& options = {});

/// Trains unsharded and sharded with the same passes and expects the same parameters to 1e-10.
void expect_equal_passes(const Problem& task, const Passes& passes,
                         const EqualityOptions& options = {});

/// The same with `model.loss(x, y).backward()` for passes.
void expect_equal_training(const Problem& task, const EqualityOptions& options = {});

/// Both for the three strategies that page differently.
void expect_equal_passes_for_strategies(const Problem& task, const Passes& passes,
                                        EqualityOptions options = {});

/// A problem whose model is a seeded `Net` in double precision, on random rows.
template <typename Net>
Problem problem_of(std::int64_t inputs, std::int64_t outputs) {
  Problem task = mlp_problem({inputs, outputs});
  task.build = [] {
    const auto model = build_seeded([] { return std::make_shared<Net>(); });
    model->to(at::kDouble);
    return model;
  };
  return task;
}

/// Expects this rank's gradients to be its parts of those that `plain` has; where `plain` has none,
/// the shard must have none.
void expect_gradients_of(const shard::ShardedModule& sharded, const torch::nn::Module& plain);

}  // namespace fullshard::testing
