#include "fullshard/shard/load_balancer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "fullshard/base/error.h"
#include "fullshard/optim/element_state.h"
#include "fullshard/optim/state_bytes.h"
#include "support/networks.h"
#include "support/training.h"

// Shares that move by themselves: away from ranks that are slow or short of memory, without a
// change in what is trained.

namespace fullshard::shard {
namespace {

using testing::Optimizer;

const testing::Problem kTask = testing::mlp_problem({64, 256, 256, 64});
constexpr std::int64_t kSteps = 18;

struct Rank {
  int work = 0;  // passes over what it owns, besides the optimizer's
  std::int64_t limit = 0;
  std::int64_t used = 0;  // bytes besides what it owns
};

std::int64_t owned_bytes(const ShardedModule& sharded, const torch::optim::Optimizer& optimizer) {
  const Counters counters = sharded.counters();
  const bool shares = sharded.mesh().shard->shares_memory();  // whoever owns them
  return (shares ? 0 : counters.parameter_shard_bytes) + counters.gradient_bytes +
         optim::state_bytes(optimizer);
}

struct Outcome {
  StateDict parameters;
  std::vector<LoadBalance> looks;
  std::int64_t last_peak = 0;  // bytes in use at most in the last step
};

Outcome train(comm::World& world, const Rank& rank, const comm::MeshOptions& mesh = {}) {
  const auto model = kTask.build();
  const auto sharded = fully_shard(model, world.mesh(mesh));
  const auto optimizer = testing::stock_optimizer(Optimizer::kAdam, sharded.parameters());
  const auto state = optim::element_state(*optimizer);
  const auto in_use = [&] { return rank.used + owned_bytes(sharded, *optimizer); };
  LoadBalancer balancer(sharded, {state.get()},
                        {.every = 3, .memory_limit_bytes = rank.limit, .memory_in_use = in_use});
  Outcome outcome;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const auto rows = testing::rows_of_rank(kTask.batch(step), world.rank(), world.size());
    model->loss(rows.x, rows.y).backward();
    balancer.note_memory();
    outcome.last_peak = in_use();
    optimizer->step();
    for (int pass = 0; pass < rank.work; ++pass) {
      for (const at::Tensor& shard : sharded.parameters()) shard.sum();
    }
    optimizer->zero_grad();
    if (auto look = balancer.end_step()) outcome.looks.push_back(std::move(*look));
  }
  outcome.parameters = sharded.full_state_dict();
  return outcome;
}

StateDict reference() {
  return testing::train_reference(kTask, {.steps = kSteps, .optimizer = Optimizer::kAdam});
}

double share_of(const LoadBalance& look, std::size_t rank) {
  double all = 0;
  for (const double owned : look.owned) all += owned;
  return look.owned[rank] / all;
}

// Other processes may slow the other rank for a while, so not the last one.
double least_share_of(const Outcome& outcome, std::size_t rank) {
  double least = 1;
  for (const LoadBalance& look : outcome.looks) least = std::min(least, share_of(look, rank));
  return least;
}

TEST(LoadBalancer, SharesLeaveARankThatIsSlow) {
  const StateDict expected = reference();
  testing::run_on_every_backend(2, [&](comm::World& world) {
    const Outcome outcome = train(world, {.work = world.rank() == 0 ? 600 : 60});
    testing::expect_match(outcome.parameters, expected, 1e-10);
    ASSERT_GE(outcome.looks.size(), 2);
    EXPECT_NEAR(share_of(outcome.looks.front(), 0), 0.5, 0.1);
    EXPECT_LT(least_share_of(outcome, 0), 0.35);
  });
}

TEST(LoadBalancer, NoRankGoesBeyondItsLimit) {
  const StateDict expected = reference();
  constexpr std::int64_t kElements = 64 * 256 + 256 + 256 * 256 + 256 + 256 * 64 + 64;
  testing::run_on_every_backend(2, [&](comm::World& world) {
    // Of gradients, two moments and, where ranks do not share them, parameters in double.
    const std::int64_t model_bytes = (world.group().shares_memory() ? 3 : 4) * 8 * kElements;
    const std::int64_t limit = world.rank() == 0 ? model_bytes / 4 : 2 * model_bytes;
    const Outcome outcome = train(world, {.limit = limit});
    testing::expect_match(outcome.parameters, expected, 1e-10);
    EXPECT_TRUE(outcome.looks.front().moved);
    EXPECT_TRUE(outcome.looks.back().fits);
    EXPECT_LE(share_of(outcome.looks.back(), 0), 0.26);
    EXPECT_LE(outcome.last_peak, limit + 8 * 64 * 8) << "a cut falls on 64 bytes";
  });
}

TEST(LoadBalancer, WhatFitsNowhereIsSaidAndLeftToSpeed) {
  comm::run_as_threads(2, [&](comm::World& world) {
    const Outcome outcome = train(world, {.limit = 1000});
    EXPECT_FALSE(outcome.looks.back().fits);
    testing::expect_match(outcome.parameters, reference(), 1e-10);
  });
}

TEST(LoadBalancer, ReplicasMoveTogether) {
  const StateDict expected = reference();
  testing::run_on_every_backend(4, [&](comm::World& world) {
    const Outcome outcome = train(world, {.work = world.rank() == 1 ? 600 : 60}, {.replicate = 2});
    testing::expect_match(outcome.parameters, expected, 1e-10);
    EXPECT_LT(least_share_of(outcome, 1), 0.35);
  });
}

TEST(LoadBalancer, ARankByItselfHasNothingToMove) {
  comm::World world = comm::single_rank();
  const Outcome outcome = train(world, {});
  for (const LoadBalance& look : outcome.looks) EXPECT_FALSE(look.moved);
  testing::expect_match(outcome.parameters, reference(), 1e-10);
}

TEST(LoadBalancer, OptionsThatCannotBeAreErrors) {
  comm::World world = comm::single_rank();
  const auto sharded = fully_shard(kTask.build(), world.mesh());
  EXPECT_THROW(LoadBalancer(sharded, {}, {.every = 0}), base::Error);
  EXPECT_THROW(LoadBalancer(sharded, {}, {.least_gain = -1}), base::Error);
  EXPECT_THROW(LoadBalancer(sharded, {}, {.memory_limit_bytes = -1}), base::Error);
}

}  // namespace
}  // namespace fullshard::shard
