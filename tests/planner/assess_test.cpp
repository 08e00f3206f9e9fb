#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "fullshard/schedule/simulate.h"
#include "planner/support.h"
#include "planner/units.h"

namespace fullshard::planner {
namespace {

using testing::bench_job;
using testing::small_job;

std::int64_t peak(const Job& job, const Candidate& candidate) {
  return assess(job, candidate).peak_unsharded_bytes;
}

const std::int64_t kBlock = std::int64_t{4} * (12 * 16 * 16 + 13 * 16);
const std::int64_t kAll = 4 * parameter_count(testing::small_model());
const std::int64_t kRoot = kAll - 2 * kBlock;

TEST(Assess, GathersWhatItsScheduleSays) {
  const Job job = small_job(2, 1);
  // Root and a block at once where nothing is ahead: the root stays one event after its use.
  EXPECT_LE(peak(job, {}), kRoot + kBlock);
  EXPECT_GE(peak(job, {}), std::max(kRoot, kBlock));
  EXPECT_GE(peak(job, {.prefetch = 1}), peak(job, {}));
  EXPECT_EQ(peak(job, {.strategy = Strategy::kShardGradOp}), kAll);
  EXPECT_EQ(peak(job, {.units = {UnitCut::Kind::kWhole, 0}}), kAll);
  EXPECT_EQ(peak(job, {.strategy = Strategy::kNoShard}), 0);
}

TEST(Assess, PeakAndGathersAreThoseOfSimulate) {
  const Job job = small_job(2, 2);
  const UnitSet set = cut_into_units(stages_of(job.model), {}, {}, false);
  std::vector<std::int64_t> bytes;
  for (const auto& layout : lay_out(set, 4)) bytes.push_back(layout.flat_bytes());
  for (const int prefetch : {0, 1}) {
    const auto schedule = schedule::make_schedule(
        set.trace(), bytes, {.forward_prefetch = prefetch, .backward_prefetch = prefetch});
    const auto simulated = schedule::simulate(schedule, bytes);
    const Assessment way = assess(job, {.prefetch = prefetch});
    EXPECT_EQ(way.peak_unsharded_bytes, simulated.peak_bytes);
    EXPECT_EQ(way.gathers, simulated.gathers);
  }
}

TEST(Assess, StagesOfAUnitAreOneVisit) {
  const UnitSet set = cut_into_units(stages_of(testing::small_model()), {}, {}, false);
  ASSERT_EQ(set.units.size(), 3U);
  std::vector<int> order;
  for (const Visit& visit : set.visits) order.push_back(visit.unit);
  EXPECT_THAT(order, ::testing::ElementsAre(0, 1, 2, 0, 0, 2, 1));
  EXPECT_EQ(set.units[1].name, "blocks.0");
  EXPECT_THAT(set.completed_by, ::testing::ElementsAre(6, 6, 5));
}

TEST(Assess, BlocksAreComputedAgainBeforeTheirBackward) {
  const UnitCut halves{UnitCut::Kind::kHalves, 0};
  const UnitSet set = cut_into_units(stages_of(testing::small_model()), halves, {}, true);
  std::vector<std::pair<int, schedule::Phase>> back;
  for (const Visit& visit : set.visits) {
    if (visit.phase != schedule::Phase::kForward) back.emplace_back(visit.unit, visit.phase);
  }
  constexpr auto kAgain = schedule::Phase::kRecompute;
  constexpr auto kBack = schedule::Phase::kBackward;
  using Visits = std::vector<std::pair<int, schedule::Phase>>;
  EXPECT_EQ(back, (Visits{{0, kBack},
                          {3, kAgain},
                          {4, kAgain},
                          {4, kBack},
                          {3, kBack},
                          {1, kAgain},
                          {2, kAgain},
                          {2, kBack},
                          {1, kBack}}));
}

TEST(Assess, UnitsOfSeveralBlocksAndOfHalves) {
  ModelShape shape = testing::small_model();
  shape.layers = 5;
  const auto units = [&](const UnitCut& cut) {
    return cut_into_units(stages_of(shape), cut, {}, false).units;
  };
  EXPECT_EQ(units({UnitCut::Kind::kBlocks, 2}).size(), 1 + 3U);
  EXPECT_EQ(units({UnitCut::Kind::kBlocks, 2})[1].name, "blocks.0 + blocks.1");
  EXPECT_EQ(units({UnitCut::Kind::kHalves, 0}).size(), 1 + 10U);
  EXPECT_EQ(units({UnitCut::Kind::kHalves, 0})[2].name, "blocks.0.mlp_norm + blocks.0.mlp");
  EXPECT_EQ(units({UnitCut::Kind::kWhole, 0}).size(), 1U);
}

TEST(Assess, AllWaysComputeTheSame) {
  const Job job = bench_job("bench-c", 4);
  const double tokens = static_cast<double>(job.tokens_per_rank());
  const double seconds = tokens * flops_per_token(job.model) / job.machines.flops;
  for (const Candidate& candidate : candidates(6, 1, {})) {
    const StepEstimate step = assess(job, candidate).step;
    EXPECT_NEAR(step.compute - step.recompute, seconds, 1e-9 * seconds);
    EXPECT_EQ(step.recompute > 0, candidate.recompute);
  }
}

TEST(Assess, RecomputingIsTheForwardOfBlocksOnceMore) {
  const Job job = bench_job("bench-c", 4);
  const ModelShape& shape = job.model;
  const double d = 384;
  const double blocks = 6 * (2 * (12 * d * d + 13 * d) + 4 * d * 256);
  const double tokens = static_cast<double>(job.tokens_per_rank());
  EXPECT_EQ(shape.layers, 6);
  EXPECT_NEAR(assess(job, {.recompute = true}).step.recompute, blocks * tokens / job.machines.flops,
              1e-9);
}

TEST(Assess, AddingIsBoundByMemory) {
  Job job = bench_job("bench-c", 4);
  job.machines.unit_overhead = 0;
  const double all = 4.0 * static_cast<double>(parameter_count(job.model));
  const double bandwidth = job.machines.host_bandwidth;
  EXPECT_NEAR(assess(job, {}).step.adding, 3 * all / bandwidth, 1e-3 * all / bandwidth);
  EXPECT_NEAR(assess(job, {}).step.optimizer, 7 * all / bandwidth, 1e-3 * all / bandwidth);
  const StepEstimate replicated = assess(job, {.strategy = Strategy::kNoShard}).step;
  EXPECT_NEAR(replicated.adding, 6 * all / bandwidth, 1e-3 * all / bandwidth);
  EXPECT_NEAR(replicated.optimizer, 14 * all / bandwidth, 1e-3 * all / bandwidth);
}

TEST(Assess, OneRankHasNothingToExchange) {
  Job job = bench_job("bench-c", 4);
  job.machines.ranks_per_host = 1;
  EXPECT_EQ(assess(job, {}).step.exposed(), 0);
}

TEST(Assess, MatricesCutIntoColumnsCostACopyOfTheirGradients) {
  Job job = bench_job("bench-c", 4);
  const double more = assess(job, {.cuts = Cuts::kHeads}).step.adding - assess(job, {}).step.adding;
  const double columns = 4.0 * 6 * (384 * 384 + 4 * 384 * 384);
  EXPECT_NEAR(more, 2 * 2 * columns / job.machines.host_bandwidth, 1e-9);
}

TEST(Assess, BetweenHostsFullShardSendsThreeTimesTheParameters) {
  Job job = bench_job("bench-a", 2);
  job.machines.hosts = 4;
  const double all = 4.0 * static_cast<double>(parameter_count(job.model));
  const auto sent = [&](Strategy strategy) {
    return static_cast<double>(assess(job, {.strategy = strategy}).bytes_between_hosts) /
           (all * 3 / 4);
  };
  EXPECT_NEAR(sent(Strategy::kFullShard), 3, 0.4);  // the root and the last block stay
  EXPECT_NEAR(sent(Strategy::kShardGradOp), 2, 1e-3);
  EXPECT_NEAR(sent(Strategy::kHybridShard), 2, 1e-3);
  EXPECT_NEAR(sent(Strategy::kHybridDivided), 2, 1e-3);
  EXPECT_NEAR(sent(Strategy::kNoShard), 2, 1e-3);
}

TEST(Assess, ASlowerNetworkIsNeverQuicker) {
  for (const Candidate& candidate : candidates(12, 4, {.recompute = false})) {
    Job job = bench_job("bench-a", 2);
    job.machines.hosts = 4;
    double before = 0;
    for (const double bandwidth : {100e9, 10e9, 1e9, 1e8, 1e7}) {
      job.machines.network_bandwidth = bandwidth;
      const double now = assess(job, candidate).step.total();
      EXPECT_GE(now, before) << to_string(candidate.strategy) << " " << to_string(candidate.units);
      before = now;
    }
    job.machines.network_latency *= 100;
    EXPECT_GE(assess(job, candidate).step.total(), before);
  }
}

TEST(Assess, MicroBatchesRepeatAllButTheUpdate) {
  Job job = bench_job("bench-c", 4);
  const StepEstimate one = assess(job, {}).step;
  job.micro_batches = 3;
  const StepEstimate three = assess(job, {}).step;
  EXPECT_DOUBLE_EQ(three.compute, 3 * one.compute);
  EXPECT_DOUBLE_EQ(three.adding, 3 * one.adding);
  EXPECT_DOUBLE_EQ(three.optimizer, one.optimizer);
  EXPECT_EQ(job.tokens_per_step(), 3 * 2 * 4 * 256);
}

}  // namespace
}  // namespace fullshard::planner
