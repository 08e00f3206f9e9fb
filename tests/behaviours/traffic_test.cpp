#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/counted_group.h"
#include "support/equality.h"
#include "support/networks.h"

// P: gathers, reductions and bytes of a step that follows its plan.

namespace fullshard::shard {
namespace {

using testing::CountedGroup;

constexpr int kRanks = 2;
constexpr std::int64_t kSteps = 2;

// Gathers ahead: none, as by default, and further.
std::vector<FullyShardOptions> with_depths(FullyShardOptions sharding) {
  std::vector<FullyShardOptions> out = {sharding};
  for (const int depth : {0, 2}) {
    sharding.forward_prefetch = sharding.backward_prefetch = depth;
    out.push_back(sharding);
  }
  return out;
}

std::int64_t sum_over_ranks(comm::World& world, std::int64_t value) {
  world.group().all_reduce({&value, 1, base::DType::kInt64}, comm::ReduceOp::kSum, {}).wait();
  return value;
}

// Padding may add to what has to travel.
void expect_theory(std::int64_t bytes, std::int64_t theory) {
  EXPECT_GE(bytes, theory);
  EXPECT_LE(static_cast<double>(bytes), 1.02 * static_cast<double>(theory));
}

// Of all ranks, without padding.
std::int64_t bytes_of_shards(const ShardedModule& sharded, comm::World& world) {
  std::int64_t bytes = 0;
  for (const at::Tensor& shard : sharded.parameters()) {
    bytes += static_cast<std::int64_t>(shard.nbytes());
  }
  return sum_over_ranks(world, bytes);
}

// Expects `gathers` of each unit in a step, but one of those named `kept`, one reduction, and no
// more bytes than that takes.
void expect_traffic(comm::World& world, const testing::Problem& task,
                    const FullyShardOptions& sharding, std::int64_t gathers,
                    const std::string& kept = "") {
  const auto model = task.build();
  comm::Mesh mesh = world.mesh();
  const auto group = std::make_shared<CountedGroup>(mesh.shard);
  mesh.shard = group;
  const auto sharded = fully_shard(model, mesh, sharding);
  testing::train_steps(*model, sharded, world, task, {.steps = 2});  // traced and planned
  const Counters before = sharded.counters();
  group->counts = {};
  testing::train_steps(*model, sharded, world, task, {.steps = kSteps});
  const Counters after = sharded.counters();
  std::int64_t gathered = 0;  // of all units, whole
  std::int64_t all = 0;
  for (std::size_t u = 0; u < after.units.size(); ++u) {
    const UnitCounters &now = after.units[u], &then = before.units[u];
    const std::int64_t expected = kSteps * (now.name == kept ? 1 : gathers);
    EXPECT_EQ(now.all_gathers - then.all_gathers, expected) << now.name;
    EXPECT_EQ(now.reduce_scatters - then.reduce_scatters, kSteps) << now.name;
    gathered += expected * now.bytes;
    all += kSteps * now.bytes;
  }
  EXPECT_EQ(sum_over_ranks(world, after.all_gather_bytes - before.all_gather_bytes),
            gathered * (kRanks - 1));
  const std::int64_t reduced =
      sum_over_ranks(world, after.reduce_scatter_bytes - before.reduce_scatter_bytes);
  EXPECT_GE(reduced, kSteps * bytes_of_shards(sharded, world) * (kRanks - 1));
  EXPECT_LE(reduced, all * (kRanks - 1));
  if (world.group().shares_memory()) return;
  EXPECT_EQ(group->counts.all_gather, gathered);
  EXPECT_EQ(group->counts.reduce_scatter, all);
  EXPECT_EQ(group->counts.all_reduce + group->counts.broadcast, 0);
}

// Units hold little else than parameters.
void expect_little_padding(const testing::Problem& task) {
  comm::World world = comm::single_rank();
  const auto sharded = fully_shard(task.build(), world.mesh());
  std::int64_t bytes = 0;
  for (const UnitCounters& unit : sharded.counters().units) bytes += unit.bytes;
  expect_theory(bytes, sharded.parameter_count() * static_cast<std::int64_t>(sizeof(float)));
}

TEST(Behaviours, P1_TwoGathersAndOneReductionAUnit) {
  const auto task = testing::gpt_problem(256, 64, 6, false, at::kFloat);
  expect_little_padding(task);
  testing::run_both_ways(kRanks, [&](comm::World& world) {
    for (const FullyShardOptions& sharding : with_depths({})) {
      expect_traffic(world, task, sharding, 2);
    }
    for (const FullyShardOptions& sharding :
         with_depths({.sharding_strategy = ShardingStrategy::SHARD_GRAD_OP})) {
      expect_traffic(world, task, sharding, 1);
    }
  });
}

TEST(Behaviours, P3_AUnitKeptGatheredIsGatheredOnceAStep) {
  const auto task = testing::gpt_problem(17, 6, 4);
  const StateDict expected = testing::train_reference(task, {.steps = 5});
  testing::run_both_ways(kRanks, [&](comm::World& world) {
    for (const FullyShardOptions& sharding : with_depths({.keep_gathered = {"blocks.1"}})) {
      expect_traffic(world, task, sharding, 2, "blocks.1");
      testing::expect_match(testing::train_sharded(task, world, sharding, {.steps = 5}), expected,
                            1e-10);  // never stale
    }
  });
}

}  // namespace
}  // namespace fullshard::shard
