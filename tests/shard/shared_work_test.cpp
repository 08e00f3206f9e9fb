#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "shard/reduction_claims.h"
#include "support/equality.h"

// Ranks of one host that reduce for each other.

namespace fullshard::shard {
namespace {

using ReductionPart = ReductionClaims::Part;

TEST(ReductionClaims, EveryPartIsClaimedOnceARound) {
  constexpr int kRanks = 3;
  constexpr std::uint64_t kRounds = 200;
  std::vector<std::atomic<int>> claims(kRanks);
  comm::run_as_threads(kRanks, [&](comm::World& world) {
    ReductionClaims parts(world.group(), 2);
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      world.group().barrier({});
      for (int owner = 0; owner < kRanks; ++owner) {
        if (parts.claim(owner, 1, round)) ++claims[static_cast<std::size_t>(owner)];
        EXPECT_TRUE(parts.is_claimed(owner, 1, round));
        EXPECT_FALSE(parts.is_claimed(owner, 0, round));
        EXPECT_FALSE(parts.is_claimed(owner, 1, round + 1));
      }
    }
  });
  for (const auto& count : claims) EXPECT_EQ(count, static_cast<int>(kRounds));
}

TEST(ReductionClaims, OffersAreSeenByAll) {
  comm::run_as_threads(2, [](comm::World& world) {
    ReductionClaims parts(world.group(), 3);
    parts.offer(2, {100 + world.rank(), {10, 20 + world.rank()}, {}});
    world.group().barrier({});
    for (int rank = 0; rank < 2; ++rank) {
      const ReductionPart part = parts.offered_by(rank, 2);
      EXPECT_EQ(part.place, 100 + rank);
      EXPECT_EQ(part.own, (layout::Range{10, 20 + rank}));
    }
  });
}

// Six equal layers, behind each of which a rank may take its time in backward.
struct Slowed : testing::Model {
  Slowed() {
    for (int i = 0; i < 6; ++i) layers->push_back(torch::nn::Linear(8, 8));
    register_module("layers", layers);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    at::Tensor h = x;
    for (const auto& layer : *layers) {
      h = torch::tanh(layer->as<torch::nn::Linear>()->forward(h));
      h.register_hook([this](const at::Tensor&) { std::this_thread::sleep_for(pause); });
    }
    return (h - y).pow(2).mean();
  }
  torch::nn::ModuleList layers;
  std::chrono::milliseconds pause{0};
};

FullyShardOptions layer_by_layer() {
  FullyShardOptions sharding;
  sharding.auto_wrap_policy = wrap_named({"layers.*"});
  return sharding;
}

const testing::Problem kTask = testing::problem_of<Slowed>(8, 8);

// Backward passes of one step, each of which reduces.
void run_passes(Slowed& model, const testing::Batch& batch, int passes) {
  for (int pass = 0; pass < passes; ++pass) (model.loss(batch.x, batch.y) / passes).backward();
}

// Trains with ranks that pause this many milliseconds a layer, and expects what unsharded training
// gives. Returns how often each rank reduced for others.
std::vector<std::int64_t> train(const std::vector<int>& pauses, int passes,
                                const FullyShardOptions& sharding = layer_by_layer()) {
  const auto expected = testing::train_passes(
      kTask, [&](testing::Model& model, const testing::Batch& batch, const testing::Turn&) {
        run_passes(dynamic_cast<Slowed&>(model), batch, passes);
      });
  std::vector<std::int64_t> counts(pauses.size());
  const int size = static_cast<int>(pauses.size());
  comm::run_as_threads(size, [&](comm::World& world) {
    at::set_num_threads(1);
    const auto rank = static_cast<std::size_t>(world.rank());
    const auto model = std::dynamic_pointer_cast<Slowed>(kTask.build());
    const auto sharded = fully_shard(model, world.mesh(), sharding);
    const auto optimizer =
        testing::stock_optimizer(testing::TrainOptions().optimizer, sharded.parameters());
    model->pause = std::chrono::milliseconds(pauses[rank]);
    for (std::int64_t step = 0; step < testing::TrainOptions().steps; ++step) {
      optimizer->zero_grad();
      run_passes(*model, testing::rows_of_rank(kTask.batch(step), world.rank(), size), passes);
      optimizer->step();
    }
    testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
    const Counters counters = sharded.counters();
    counts[rank] = counters.reductions_for_others;
    // What is counted of reductions does not depend on who does them.
    EXPECT_EQ(counters.reduce_scatters, testing::TrainOptions().steps * passes * 6);
    EXPECT_EQ(counters.reduce_scatter_bytes,
              testing::TrainOptions().steps * passes * counters.parameter_shard_bytes * (size - 1));
  });
  return counts;
}

TEST(SharedWork, ARankThatIsAheadReducesForOneBehind) {
  const auto counts = train({0, 20}, 1);
  EXPECT_GE(counts[0], 3);
  EXPECT_LE(counts[1], counts[0]);
}

TEST(SharedWork, OfSeveralRanksThoseAheadReduceForTheSlowest) {
  const auto counts = train({0, 20, 0, 0}, 1);
  EXPECT_GE(counts[0] + counts[2] + counts[3], 3);
}

// In the second pass of a step gradients are added to what the shards have, which only their owner
// does.
TEST(SharedWork, WhatAddsToEarlierPassesIsTheOwnersOwn) {
  train({0, 10}, 2);
  train({10, 0, 5}, 3);
}

TEST(SharedWork, HoldsForEveryStrategyThatReducesOnTheHost) {
  for (const auto strategy :
       {ShardingStrategy::SHARD_GRAD_OP, ShardingStrategy::SHARD_OPTIMIZER_ONLY}) {
    FullyShardOptions sharding = layer_by_layer();
    sharding.sharding_strategy = strategy;
    EXPECT_GE(train({20, 0}, 1, sharding)[1], 1);
  }
}

}  // namespace
}  // namespace fullshard::shard
