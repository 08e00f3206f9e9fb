#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "planner/support.h"

// Closed forms of docs/design/memory.md and docs/planning.md.

namespace fullshard::planner {
namespace {

using testing::bench_job;
using testing::small_job;

constexpr double kMiB = 1 << 20;
constexpr UnitCut kHalves{UnitCut::Kind::kHalves, 0};
constexpr UnitCut kWhole{UnitCut::Kind::kWhole, 0};

double mebibytes(const Job& job, const Candidate& candidate = {}) {
  return static_cast<double>(assess(job, candidate).memory.host.total()) / kMiB;
}

// The columns "formula" there.
TEST(Memory, OfTheBenchmarksIsTheTablesFormula) {
  EXPECT_NEAR(mebibytes(bench_job("bench-a", 2)), 2832, 2832 * 0.005);
  EXPECT_NEAR(mebibytes(bench_job("bench-b", 1)), (2624 + 2732) / 2.0, 60);
  EXPECT_NEAR(mebibytes(bench_job("bench-c", 4)), 464, 464 * 0.005);
}

// And what was measured.
TEST(Memory, OfTheBenchmarksIsWithinFivePercentOfWhatWasMeasured) {
  EXPECT_NEAR(mebibytes(bench_job("bench-a", 2)), 2900, 0.05 * 2900);
  EXPECT_NEAR(mebibytes(bench_job("bench-b", 1)), 2780, 0.06 * 2780);
  EXPECT_NEAR(mebibytes(bench_job("bench-c", 4)), 464, 0.05 * 464);
}

struct Bytes {
  std::int64_t all = 4 * parameter_count(testing::small_model());
  std::int64_t table = std::int64_t{4} * 16 * 16;
  std::int64_t block = std::int64_t{4} * (12 * 16 * 16 + 13 * 16);
};

TEST(Memory, OnOneHostIsTheFormulaAtEachMoment) {
  const Bytes bytes;
  Job job = small_job(1, 2);
  const MemoryEstimate ends = assess(job, {}).memory;
  EXPECT_EQ(ends.moment, "backward ends");
  EXPECT_EQ(ends.host.total(), 4 * bytes.all + 2 * (2 * bytes.table + 2 * bytes.block));
  job.batch = 1000;  // activations count
  const MemoryEstimate begins = assess(job, {}).memory;
  EXPECT_EQ(begins.moment, "backward begins");
  const double elements = 4.0 * 1000 * (16.5 * 16 * 2 + 4 * 16);
  EXPECT_EQ(begins.host.total(), 3 * bytes.all + 2 * std::llround(4 * elements));
  job.micro_batches = 2;  // and there are the gradients of the first
  EXPECT_EQ(assess(job, {}).memory.host.total(), begins.host.total() + bytes.all);
}

TEST(Memory, OfManyRanksIsMostBeforeTheyShard) {
  const Bytes bytes;
  Job job = small_job(1, 64);
  job.model.tie_embeddings = false;
  const std::int64_t all = bytes.all + bytes.table;
  Candidate small;
  small.units = kHalves;
  const MemoryEstimate memory = assess(job, small).memory;
  if (memory.moment == "ranks have built the model") EXPECT_EQ(memory.host.total(), 65 * all);
  EXPECT_GE(memory.host.total(), 65 * all);
}

TEST(Memory, OfOneRankIsThatOfAPlainProcess) {
  const Bytes bytes;
  EXPECT_EQ(assess(small_job(1, 1), {}).memory.host.total(), 4 * bytes.all + 2 * bytes.table);
}

TEST(Memory, WithoutShardingEveryRankHasAll) {
  const Bytes bytes;
  const MemoryEstimate memory = assess(small_job(1, 4), {.strategy = Strategy::kNoShard}).memory;
  EXPECT_EQ(memory.host.parameters, 4 * bytes.all);
  EXPECT_EQ(memory.host.optimizer, 4 * 2 * bytes.all);
  EXPECT_EQ(memory.rank.parameters, bytes.all);
}

TEST(Memory, WithoutShardingPagesOfActivationsAndGradientsAreApart) {
  const Bytes bytes;
  const MemoryEstimate memory = assess(small_job(1, 4), {.strategy = Strategy::kNoShard}).memory;
  EXPECT_EQ(memory.moment, "backward ends");
  EXPECT_EQ(memory.rank.gradients, bytes.all);
  EXPECT_EQ(memory.rank.activations, 4 * 4 * (2 * 33 * 16 / 2 + 4 * 16));
}

TEST(Memory, EstimatesThatWereFartherOffNeedMoreToSpare) {
  const Job job = small_job(1, 2);
  EXPECT_EQ(memory_margin(job, {}), 1.08);
  EXPECT_EQ(memory_margin(job, {.recompute = true}), 1.2);
  EXPECT_EQ(memory_margin(job, {.strategy = Strategy::kNoShard}), 1.3);
  EXPECT_EQ(memory_margin(small_job(2, 2), {}), 1.3);
  EXPECT_EQ(memory_margin(small_job(2, 2), {.strategy = Strategy::kHybridShard}), 1.08);
}

TEST(Memory, OnOneHostStrategiesThatShardNeedTheSame) {
  const Job job = bench_job("bench-a", 2);
  for (const Strategy strategy : {Strategy::kShardGradOp, Strategy::kShardOptimizerOnly}) {
    EXPECT_EQ(assess(job, {.strategy = strategy}).memory.host, assess(job, {}).memory.host);
  }
}

TEST(Memory, OneUnitHasAllGradientsAtOnce) {
  const Bytes bytes;
  const MemoryEstimate memory = assess(small_job(1, 2), {.units = kWhole}).memory;
  EXPECT_EQ(memory.host.unreduced, 2 * (bytes.all - bytes.table));
}

TEST(Memory, BetweenHostsRanksHaveBuffersOfTheirOwn) {
  Job job = bench_job("bench-a", 2);
  job.machines.hosts = 2;
  const Assessment way = assess(job, {.prefetch = 1});
  const std::int64_t all = 4 * parameter_count(job.model);
  EXPECT_NEAR(static_cast<double>(way.memory.host.parameters), static_cast<double>(all) / 2,
              static_cast<double>(all) / 100);
  EXPECT_GE(way.memory.rank.gathered, way.peak_unsharded_bytes);
  EXPECT_GT(way.memory.rank.unreduced, 0);
}

TEST(Memory, KeepingParametersGatheredBetweenHostsTakesAllOfThem) {
  Job job = bench_job("bench-a", 2);
  job.machines.hosts = 2;
  for (const Strategy strategy : {Strategy::kShardGradOp, Strategy::kShardOptimizerOnly}) {
    const Assessment way = assess(job, {.strategy = strategy});
    EXPECT_EQ(way.peak_unsharded_bytes, 4 * parameter_count(job.model));
    EXPECT_EQ(way.memory.rank.gathered, way.peak_unsharded_bytes);
  }
}

TEST(Memory, ReplicasThatDivideUpdatesDivideStateToo) {
  Job job = bench_job("bench-a", 2);
  job.machines.hosts = 4;
  const MemoryParts alike = assess(job, {.strategy = Strategy::kHybridShard}).memory.host;
  const MemoryParts divided = assess(job, {.strategy = Strategy::kHybridDivided}).memory.host;
  EXPECT_EQ(divided.parameters, alike.parameters);
  EXPECT_NEAR(static_cast<double>(divided.optimizer), static_cast<double>(alike.optimizer) / 4, 64);
}

TEST(Memory, RecomputationKeepsInputsOfBlocksAndOneBlock) {
  Job job = small_job(1, 2);
  job.model.layers = 8;
  job.batch = 1000;
  const MemoryEstimate memory = assess(job, {.recompute = true}).memory;
  EXPECT_EQ(memory.moment, "a block is recomputed");
  const double elements = 4.0 * 1000 * (8 * 16 + 16.5 * 16);
  EXPECT_EQ(memory.rank.activations, std::llround(4 * elements));
}

TEST(Memory, Bf16HalvesWhatIsComputedWithAndKeepsMasters) {
  Job job = small_job(1, 2);
  job.model.dim = 32;  // no padding in either
  job.batch = 1000;
  const MemoryParts fp32 = assess(job, {}).memory.host;
  job.precision = Precision::kBFloat16;
  const MemoryParts bf16 = assess(job, {}).memory.host;
  EXPECT_EQ(2 * bf16.activations, fp32.activations);
  EXPECT_EQ(bf16.optimizer, fp32.optimizer);
  EXPECT_EQ(bf16.parameters, fp32.parameters + fp32.parameters / 2);
}

TEST(Memory, MoreRanksNeverNeedMoreEach) {
  for (const char* model : {"bench-a", "bench-c", "vit-b16"}) {
    for (const UnitCut& units : {UnitCut{}, kHalves, kWhole}) {
      std::int64_t before = std::numeric_limits<std::int64_t>::max();
      for (int ranks = 1; ranks <= 32; ++ranks) {
        Job job{.model = named_model(model)};
        job.machines.ranks_per_host = ranks;
        if (ranks == 2) before = std::numeric_limits<std::int64_t>::max();  // one reduces nothing
        const std::int64_t now = assess(job, {.units = units}).memory.rank.total();
        EXPECT_LE(now, before) << model << " at " << ranks << " ranks";
        before = now;
      }
    }
  }
}

TEST(Memory, MoreHostsNeverNeedMoreEach) {
  for (const char* model : {"bench-a", "gpt2-355m"}) {
    std::int64_t before = std::numeric_limits<std::int64_t>::max();
    for (const int hosts : {2, 4, 8, 16, 32}) {
      Job job{.model = named_model(model)};
      job.machines.hosts = hosts;
      const std::int64_t now = assess(job, {.prefetch = 1}).memory.host.total();
      EXPECT_LE(now, before) << model << " on " << hosts << " hosts";
      before = now;
    }
  }
}

}  // namespace
}  // namespace fullshard::planner
