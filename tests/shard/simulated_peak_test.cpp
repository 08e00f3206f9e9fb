#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "fullshard/schedule/simulate.h"
#include "fullshard/schedule/text.h"
#include "support/networks.h"
#include "support/training.h"

// What the engine counts in a step that follows its plan is what the plan's replay without tensors
// says, for every strategy and way to communicate.

namespace fullshard::shard {
namespace {

using testing::Problem;

const Problem kTask = testing::gpt_problem(17, 6, 3, /*tied=*/true);

std::vector<std::int64_t> unit_bytes(const Counters& counters) {
  std::vector<std::int64_t> bytes;
  for (const UnitCounters& unit : counters.units) bytes.push_back(unit.bytes);
  return bytes;
}

struct Planned {
  schedule::SimulationResult simulated;
  Counters before, after;  // of a step that follows the plan; peaks are this step's
};

Planned follow_plan(comm::World& world, const FullyShardOptions& sharding,
                    const comm::MeshOptions& mesh) {
  const auto model = kTask.build();
  const auto sharded = fully_shard(model, world.mesh(mesh), sharding);
  testing::train_steps(*model, sharded, world, kTask, {.steps = 2});
  sharded.reset_peak();
  const Counters before = sharded.counters();
  testing::train_steps(*model, sharded, world, kTask, {.steps = 1});
  const Counters after = sharded.counters();
  return {schedule::simulate(schedule::parse(sharded.schedule()), unit_bytes(after)), before,
          after};
}

void expect_as_simulated(comm::World& world, const FullyShardOptions& sharding,
                         const comm::MeshOptions& mesh = {}) {
  const auto [simulated, before, after] = follow_plan(world, sharding, mesh);
  EXPECT_GT(simulated.peak_bytes, 0);
  EXPECT_EQ(after.peak_unsharded_bytes, simulated.peak_bytes);
  EXPECT_EQ(after.all_gathers - before.all_gathers, simulated.gathers);
  EXPECT_EQ(after.all_gather_collectives - before.all_gather_collectives, simulated.collectives);
  for (std::size_t u = 0; u < after.units.size(); ++u) {
    EXPECT_EQ(after.units[u].all_gathers - before.units[u].all_gathers, simulated.unit_gathers[u])
        << after.units[u].name;
  }
  if (sharding.max_unsharded_bytes > 0) {
    EXPECT_LE(after.peak_unsharded_bytes, sharding.max_unsharded_bytes);
  }
}

// As by default, ahead, on touch and in buckets, under a limit and without.
void expect_as_simulated_however_planned(comm::World& world, FullyShardOptions sharding,
                                         const comm::MeshOptions& mesh = {}) {
  comm::World alone = comm::single_rank();
  const auto sizes = unit_bytes(fully_shard(kTask.build(), alone.mesh()).counters());
  const std::int64_t largest = *std::max_element(sizes.begin(), sizes.end());
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  struct Plan {
    std::optional<int> depth;
    std::int64_t limit = 0;
    std::int64_t bucket = 0;
  };
  for (const auto& [depth, limit, bucket] :
       {Plan{}, Plan{.depth = 2, .limit = 2 * largest}, Plan{.depth = 0, .bucket = total},
        Plan{.depth = 1, .limit = 2 * largest, .bucket = largest + 1}}) {
    SCOPED_TRACE(::testing::Message()
                 << "depth " << depth.value_or(-1) << " limit " << limit << " bucket " << bucket);
    sharding.max_unsharded_bytes = limit;
    sharding.forward_prefetch = sharding.backward_prefetch = depth;
    sharding.gather_bucket_bytes = bucket;
    expect_as_simulated(world, sharding, mesh);
  }
}

TEST(SimulatedPeak, IsTheRealOneForEveryStrategy) {
  const std::vector<FullyShardOptions> choices = {
      {},
      {.sharding_strategy = ShardingStrategy::SHARD_GRAD_OP},
      {.keep_gathered = {"blocks.1"}},
      {.sharding_strategy = ShardingStrategy::SHARD_GRAD_OP, .keep_gathered = {"blocks.*"}},
      {.rules = {{.pattern = "blocks.1.*", .strategy = ShardingStrategy::SHARD_GRAD_OP},
                 {.pattern = "*norm*", .strategy = ShardingStrategy::NO_SHARD}}},
      {.reshard_after_forward = 1}};
  testing::run_both_ways(2, [&](comm::World& world) {
    for (std::size_t i = 0; i < choices.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "choice " << i);
      expect_as_simulated_however_planned(world, choices[i]);
    }
  });
}

TEST(SimulatedPeak, IsTheRealOneOnReplicas) {
  const auto hybrid = [](comm::World& world) {
    expect_as_simulated_however_planned(
        world, {.sharding_strategy = ShardingStrategy::HYBRID_SHARD}, {.replicate = 2});
  };
  testing::run_both_ways(4, hybrid);
  testing::run_on_hosts(2, 2, hybrid);
}

// A plan holds only what comes and goes.
TEST(SimulatedPeak, WhatStaysForGoodComesOnTop) {
  const FullyShardOptions sharding{
      .rules = {{.pattern = "blocks.1.*", .strategy = ShardingStrategy::SHARD_OPTIMIZER_ONLY}}};
  testing::run_both_ways(2, [&](comm::World& world) {
    const auto [simulated, before, after] = follow_plan(world, sharding, {});
    std::int64_t for_good = 0;
    for (const UnitCounters& unit : after.units) {
      if (unit.name == "blocks.1") for_good += unit.bytes;
    }
    EXPECT_GT(for_good, 0);
    EXPECT_EQ(after.peak_unsharded_bytes, simulated.peak_bytes + for_good);
    EXPECT_EQ(after.all_gathers - before.all_gathers, simulated.gathers + 1);
  });
}

// Neither with SHARD_OPTIMIZER_ONLY nor, over messages, with `dynamic`.
TEST(SimulatedPeak, WhereEverythingStaysThereIsNoPlanAndThePeakIsAll) {
  const auto expect_all = [](comm::World& world, const FullyShardOptions& sharding) {
    const auto model = kTask.build();
    const auto sharded = fully_shard(model, world.mesh(), sharding);
    testing::train_steps(*model, sharded, world, kTask, {.steps = 3});
    const std::vector<std::int64_t> sizes = unit_bytes(sharded.counters());
    EXPECT_EQ(sharded.schedule(), "");
    EXPECT_EQ(sharded.counters().peak_unsharded_bytes,
              std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}));
  };
  testing::run_both_ways(2, [&](comm::World& world) {
    expect_all(world, {.sharding_strategy = ShardingStrategy::SHARD_OPTIMIZER_ONLY});
  });
  testing::run_over_gloo(2, [&](comm::World& world) { expect_all(world, {.dynamic = true}); });
}

TEST(SimulatedPeak, IsTheRealOneWhereUnitsAreReshardedToASmallerGroup) {
  testing::run_over_gloo(4, [](comm::World& world) {
    expect_as_simulated_however_planned(world, {.reshard_after_forward = 2});
  });
}

}  // namespace
}  // namespace fullshard::shard
