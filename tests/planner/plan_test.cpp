#include "fullshard/planner/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "planner/support.h"

namespace fullshard::planner {
namespace {

using testing::bench_job;
using testing::error_of;
using ::testing::HasSubstr;

std::int64_t bytes(const Assessment& way) { return way.memory.host.total(); }

Job large_job(int hosts) {
  Job job{.model = named_model("gpt2-355m"), .batch = 4};
  job.machines.hosts = hosts;
  return job;
}

TEST(Plan, OnOneHostIsTheDefault) {
  const Plan plan = make_plan(bench_job("bench-a", 2), {});
  EXPECT_TRUE(plan.fits());
  EXPECT_EQ(plan.best().candidate, Candidate{});
  EXPECT_EQ(plan.ways.size(), candidates(12, 1, {}).size());
}

TEST(Plan, WaysAreInOrder) {
  Job job = large_job(4);
  job.machines.memory_per_host = std::int64_t{48} << 30;
  const Plan plan = make_plan(job, {});
  ASSERT_TRUE(plan.fits());
  for (std::size_t i = 2; i < plan.ways.size(); ++i) {
    const Assessment& before = plan.ways[i - 1];
    const Assessment& now = plan.ways[i];
    EXPECT_GE(before.fits, now.fits);
    if (now.fits) EXPECT_LE(before.step.total(), now.step.total());
    if (!before.fits) EXPECT_LE(bytes(before), bytes(now));
  }
}

TEST(Plan, ChosenIsAsQuickAsTheQuickestThatFits) {
  for (const int gibibytes : {16, 20, 24, 32, 64, 128}) {
    for (const int hosts : {1, 2, 8}) {
      Job job = large_job(hosts);
      job.machines.memory_per_host = std::int64_t{gibibytes} << 30;
      const Plan plan = make_plan(job, {});
      if (!plan.fits()) continue;
      EXPECT_LE(static_cast<double>(bytes(plan.best())) * memory_margin(job, plan.best().candidate),
                static_cast<double>(job.machines.memory_per_host));
      for (const Assessment& way : plan.ways) {
        if (way.fits) EXPECT_LE(plan.best().step.total(), kSameTime * way.step.total());
      }
    }
  }
}

TEST(Plan, LessMemoryIsNeverQuicker) {
  double before = 0;
  for (const int gibibytes : {128, 64, 32, 24, 20, 16, 12, 8}) {
    Job job = large_job(4);
    job.machines.memory_per_host = std::int64_t{gibibytes} << 30;
    const Plan plan = make_plan(job, {});
    if (!plan.fits()) break;
    EXPECT_GE(plan.best().step.total() * kSameTime, before);
    before = plan.best().step.total();
  }
  EXPECT_GT(before, 0);
}

TEST(Plan, RecomputesOnlyWhereItHasTo) {
  Job job = large_job(1);
  job.batch = 16;
  job.machines.memory_per_host = std::int64_t{1} << 40;
  EXPECT_FALSE(make_plan(job, {}).best().candidate.recompute);
  const std::int64_t without = bytes(make_plan(job, {.recompute = false}).best());
  job.machines.memory_per_host = without;  // less the margin
  const Plan plan = make_plan(job, {});
  ASSERT_TRUE(plan.fits());
  EXPECT_TRUE(plan.best().candidate.recompute);
  EXPECT_THAT(plan.reasons, ::testing::Contains(HasSubstr("computed again")));
  EXPECT_THAT(plan.reasons, ::testing::Contains(HasSubstr("Quicker, but too large")));
}

TEST(Plan, ManyUnitsWhereBytesCountFewWhereLatencyDoes) {
  Job job = large_job(4);
  job.machines.memory_per_host = std::int64_t{1} << 42;
  job.machines.flops = 1e13;
  const auto units = [&](double bandwidth, double latency) {
    job.machines.network_bandwidth = bandwidth;
    job.machines.network_latency = latency;
    return make_plan(job, {.strategies = {Strategy::kFullShard}}).best().units;
  };
  const int many = units(10e9, 1e-6);
  const int few = units(1000e9, 50e-3);
  EXPECT_GT(many, 8);
  EXPECT_LT(few, many);
}

TEST(Plan, GranularitiesAreThoseOfTheChosenWay) {
  const Plan plan = make_plan(large_job(2), {});
  const std::vector<Assessment> ways = plan.granularities();
  EXPECT_EQ(ways.size(), 5 + 2U);  // 1, 2, 4, 8 and 16 blocks, whole, halves
  for (const Assessment& way : ways) {
    EXPECT_EQ(way.candidate.strategy, plan.best().candidate.strategy);
    EXPECT_EQ(way.candidate.recompute, plan.best().candidate.recompute);
  }
}

TEST(Plan, NothingFitsSaysWhatTakesMemoryAndWhatHelps) {
  Job job = large_job(1);
  job.machines.memory_per_host = std::int64_t{4} << 30;
  const Plan plan = make_plan(job, {});
  EXPECT_FALSE(plan.fits());
  EXPECT_TRUE(plan.reasons.empty());
  EXPECT_TRUE(std::ranges::all_of(
      plan.ways, [&](const Assessment& way) { return bytes(way) >= bytes(plan.best()); }));
  const std::string text = why_nothing_fits(plan);
  EXPECT_THAT(text, HasSubstr("nothing fits into 4.00 GiB a host"));
  EXPECT_THAT(text, HasSubstr("parameters "));
  EXPECT_THAT(text, HasSubstr("1 sequence a rank in place of 4"));
  EXPECT_THAT(text, HasSubstr("bf16 with fp32 masters"));
  EXPECT_THAT(text, HasSubstr("ranks a host"));
  EXPECT_THAT(text, HasSubstr(" hosts: "));
}

TEST(Plan, ARemedyThatFitsFits) {
  Job job = large_job(1);
  job.machines.memory_per_host = std::int64_t{16} << 30;
  const Plan plan = make_plan(job, {.recompute = false});
  ASSERT_FALSE(plan.fits());
  const auto found = std::ranges::find_if(plan.remedies, [](const Remedy& remedy) {
    return remedy.change == "1 sequence a rank in place of 4, in 4 times as many micro-batches";
  });
  ASSERT_NE(found, plan.remedies.end());
  job.batch = 1;
  job.micro_batches = 4;
  const Plan changed = make_plan(job, {.recompute = false});
  EXPECT_EQ(changed.fits(), found->fits);
  EXPECT_EQ(std::ranges::min(changed.ways, {}, bytes).memory.host.total(), found->host_bytes);
}

TEST(Plan, ChoicesLimitWhatIsConsidered) {
  const Plan plan = make_plan(large_job(2), {.strategies = {Strategy::kHybridShard},
                                             .units = {{UnitCut::Kind::kBlocks, 4}},
                                             .cuts = {Cuts::kHeads},
                                             .recompute = true});
  ASSERT_EQ(plan.ways.size(), 1U);
  EXPECT_EQ(plan.best().units, 1 + 6);
  EXPECT_THAT(error_of([] { make_plan(large_job(1), {.strategies = {Strategy::kHybridShard}}); }),
              HasSubstr("--strategy"));
}

TEST(Plan, UnusableJobsNameTheFlag) {
  const auto refused = [](auto change) {
    Job job = large_job(2);
    change(job);
    return error_of([&] { make_plan(job, {}); });
  };
  EXPECT_THAT(refused([](Job& job) { job.machines.hosts = 0; }), HasSubstr("--hosts: found 0"));
  EXPECT_THAT(refused([](Job& job) { job.machines.ranks_per_host = -1; }),
              HasSubstr("--ranks-per-host: found -1"));
  EXPECT_THAT(refused([](Job& job) { job.machines.flops = 0; }), HasSubstr("--flops: found 0"));
  EXPECT_THAT(refused([](Job& job) { job.machines.network_bandwidth = -1; }),
              HasSubstr("--network-bandwidth: found -1"));
  EXPECT_THAT(refused([](Job& job) { job.batch = 0; }), HasSubstr("--batch: found 0"));
  EXPECT_THAT(refused([](Job& job) { job.micro_batches = 0; }),
              HasSubstr("--micro-batches: found 0"));
}

TEST(Plan, TextsOfChoicesNameTheFlag) {
  EXPECT_EQ(parse_units("4"), (UnitCut{UnitCut::Kind::kBlocks, 4}));
  EXPECT_EQ(parse_units("blocks"), UnitCut{});
  EXPECT_THAT(error_of([] { parse_units("0"); }), HasSubstr("--units: found \"0\""));
  EXPECT_THAT(error_of([] { parse_strategy("full"); }), HasSubstr("--strategy: found \"full\""));
  EXPECT_THAT(error_of([] { parse_cuts("row"); }), HasSubstr("--atoms: found \"row\""));
  EXPECT_THAT(error_of([] { parse_recompute("yes"); }), HasSubstr("expected one of auto, off, on"));
  EXPECT_THAT(error_of([] { parse_precision("fp8"); }), HasSubstr("--precision: found \"fp8\""));
}

}  // namespace
}  // namespace fullshard::planner
