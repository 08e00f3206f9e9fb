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
  schedule::Schedule plan;
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
  schedule::Schedule plan = schedule::parse(sharded.schedule());
  auto simulated = schedule::simulate(plan, unit_bytes(after));
  return {std::move(plan), std::move(simulated), before, after};
}

/// Returns the bytes of units that stay until the next update.
std::int64_t expect_as_simulated(comm::World& world, const FullyShardOptions& sharding,
                                 const comm::MeshOptions& mesh = {}) {
  const auto [plan, simulated, before, after] = follow_plan(world, sharding, mesh);
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
  std::int64_t staying = 0;
  for (const schedule::Staying& unit : plan.staying) {
    staying += after.units[static_cast<std::size_t>(unit.unit)].bytes;
  }
  return staying;
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
  const std::int64_t staying = expect_as_simulated(world, sharding, mesh);
  for (const auto& [depth, limit, bucket] :
       {Plan{.depth = 2, .limit = 2 * largest}, Plan{.depth = 0, .bucket = total},
        Plan{.depth = 1, .limit = 2 * largest, .bucket = largest + 1}}) {
    SCOPED_TRACE(::testing::Message()
                 << "depth " << depth.value_or(-1) << " limit " << limit << " bucket " << bucket);
    sharding.max_unsharded_bytes = limit == 0 ? 0 : staying + limit;
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

TEST(SimulatedPeak, IsTheRealOneWhereUnitsStayUntilTheNextUpdate) {
  const std::vector<FullyShardOptions> choices = {
      {.sharding_strategy = ShardingStrategy::SHARD_OPTIMIZER_ONLY},
      {.rules = {{.pattern = "blocks.1.*", .strategy = ShardingStrategy::SHARD_OPTIMIZER_ONLY}}},
      {.sharding_strategy = ShardingStrategy::SHARD_GRAD_OP,
       .rules = {{.pattern = "blocks.0.*", .strategy = ShardingStrategy::SHARD_OPTIMIZER_ONLY},
                 {.pattern = "blocks.2.*", .strategy = ShardingStrategy::SHARD_OPTIMIZER_ONLY},
                 {.pattern = "*norm*", .strategy = ShardingStrategy::NO_SHARD}}}};
  testing::run_both_ways(2, [&](comm::World& world) {
    for (std::size_t i = 0; i < choices.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "choice " << i);
      expect_as_simulated_however_planned(world, choices[i]);
    }
  });
}

TEST(SimulatedPeak, IsTheRealOneOfDynamicModels) {
  testing::run_over_gloo(
      2, [](comm::World& world) { expect_as_simulated_however_planned(world, {.dynamic = true}); });
}

// What stays is gathered in the first of the steps between two updates, and the plan of all of them
// has it.
TEST(SimulatedPeak, IsTheRealOneWithGradientsOfSeveralSteps) {
  constexpr int kSteps = 3;
  testing::run_both_ways(2, [&](comm::World& world) {
    const auto model = kTask.build();
    const auto sharded = fully_shard(
        model, world.mesh(),
        {.rules = {{.pattern = "blocks.1.*", .strategy = ShardingStrategy::SHARD_OPTIMIZER_ONLY}}});
    const auto optimizer = testing::stock_optimizer(testing::Optimizer::kSgd, sharded.parameters());
    const auto train_until_update = [&] {
      for (int step = 0; step < kSteps; ++step) {
        const auto rows = testing::rows_of_rank(kTask.batch(step), world.rank(), world.size());
        model->loss(rows.x, rows.y).backward();
      }
      optimizer->step();
      optimizer->zero_grad();
    };
    train_until_update();
    train_until_update();
    const schedule::Schedule plan = schedule::parse(sharded.schedule());
    ASSERT_EQ(plan.staying.size(), 1U);
    EXPECT_GT(plan.staying.front().after, 0U);
    sharded.reset_peak();
    const Counters before = sharded.counters();
    train_until_update();
    const Counters after = sharded.counters();
    EXPECT_EQ(schedule::parse(sharded.schedule()), plan);
    const auto simulated = schedule::simulate(plan, unit_bytes(after));
    EXPECT_EQ(after.peak_unsharded_bytes, simulated.peak_bytes);
    EXPECT_EQ(after.all_gathers - before.all_gathers, kSteps * simulated.gathers - (kSteps - 1));
  });
}

TEST(SimulatedPeak, IsTheRealOneWhereUnitsAreReshardedToASmallerGroup) {
  testing::run_over_gloo(4, [](comm::World& world) {
    expect_as_simulated_however_planned(world, {.reshard_after_forward = 2});
  });
}

}  // namespace
}  // namespace fullshard::shard
