#include "fullshard/planner/input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fullshard/planner/measured.h"
#include "planner/support.h"

namespace fullshard::planner {
namespace {

using ::testing::Contains;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Input, WithoutAnythingIsTheTrainersModelOnAssumedMachines) {
  const SettledJob settled = settle({});
  EXPECT_EQ(settled.job.model.dim, config::ModelConfig{}.dim);
  EXPECT_EQ(settled.job.model.vocab, 256);
  EXPECT_EQ(settled.job.batch, 4);  // 32 sequences over 8 ranks
  EXPECT_TRUE(settled.job.clips);
  EXPECT_THAT(settled.assumed, Contains("--ranks-per-host 8"));
  EXPECT_THAT(settled.assumed, Contains("--flops 50"));
  EXPECT_THAT(settled.assumed, Not(Contains(HasSubstr("network"))));
  EXPECT_FALSE(settled.configured);
}

TEST(Input, TheConfigurationCounts) {
  Input input;
  input.is_configured = true;
  input.config.job.nproc_per_node = 4;
  input.config.job.threads_per_rank = 2;
  input.config.training.global_batch_size = 64;
  input.config.training.gradient_accumulation_steps = 2;
  input.config.training.dtype = base::DType::kFloat64;
  input.config.parallelism.sharding_strategy = config::ShardingStrategy::kShardGradOp;
  input.config.parallelism.wrap = config::Wrap::kNone;
  const SettledJob settled = settle(input);
  EXPECT_EQ(settled.job.machines.ranks_per_host, 4);
  EXPECT_EQ(settled.job.machines.flops, 2 * kAssumedFlopsPerThread);
  EXPECT_EQ(settled.job.batch, 8);
  EXPECT_EQ(settled.job.micro_batches, 2);
  EXPECT_EQ(settled.job.precision, Precision::kFloat64);
  EXPECT_EQ(settled.configured,
            (Candidate{.strategy = Strategy::kShardGradOp, .units = {UnitCut::Kind::kWhole, 0}}));
}

TEST(Input, FlagsComeBeforeTheConfiguration) {
  Input input;
  input.config.job.nproc_per_node = 4;
  input.ranks_per_host = 2;
  input.hosts = 3;
  input.layers = 5;
  input.batch = 7;
  input.gflops = 80.5;
  input.network_latency = 10;
  input.memory_per_rank = "2GiB";
  input.precision = "bf16";
  const SettledJob settled = settle(input);
  const Machines& machines = settled.job.machines;
  EXPECT_EQ(machines.world(), 6);
  EXPECT_EQ(settled.job.model.layers, 5);
  EXPECT_EQ(settled.job.batch, 7);
  EXPECT_DOUBLE_EQ(machines.flops, 80.5e9);
  EXPECT_DOUBLE_EQ(machines.network_latency, 10e-6);
  EXPECT_EQ(machines.memory_per_host, std::int64_t{4} << 30);
  EXPECT_EQ(settled.job.precision, Precision::kBFloat16);
  EXPECT_THAT(settled.assumed, Contains("--network-bandwidth 1.25"));
}

TEST(Input, KnownModelsAndChangesOfThem) {
  Input input;
  input.model = "bench-c";
  EXPECT_EQ(settle(input).job.batch, 4);
  EXPECT_FALSE(settle(input).job.clips);
  input.layers = 3;
  EXPECT_EQ(settle(input).job.model.name, "bench-c, changed");
  input.kind = "encoder";
  EXPECT_EQ(settle(input).job.model.kind, ModelKind::kEncoder);
}

TEST(Input, BadInputNamesTheFlag) {
  const auto refused = [](auto change) {
    Input input;
    change(input);
    return error_of([&] { settle(input); });
  };
  EXPECT_THAT(refused([](Input& input) { input.model = "x"; }), HasSubstr("--model"));
  EXPECT_THAT(refused([](Input& input) { input.kind = "x"; }), HasSubstr("--kind: found \"x\""));
  EXPECT_THAT(refused([](Input& input) { input.heads = 5; }), HasSubstr("--heads: found 5"));
  EXPECT_THAT(refused([](Input& input) { input.hosts = 0; }), HasSubstr("--hosts: found 0"));
  EXPECT_THAT(refused([](Input& input) { input.memory_per_host = "lots"; }),
              HasSubstr("--memory-per-host: found \"lots\"; expected a size such as 24GiB"));
  EXPECT_THAT(refused([](Input& input) { input.memory_per_host = input.memory_per_rank = "1GiB"; }),
              HasSubstr("give one of both"));
  EXPECT_THAT(refused([](Input& input) { input.measured = "/none"; }),
              HasSubstr("cannot read /none"));
  EXPECT_THAT(refused([](Input& input) { input.ranks_per_host = 7; }),
              HasSubstr("training.global_batch_size (32) must be a multiple of 7 ranks"));
  EXPECT_THAT(refused([](Input& input) { input.batch = 0; }), HasSubstr("--batch: found 0"));
}

TEST(Input, Sizes) {
  EXPECT_EQ(parse_bytes("x", "1536MiB"), std::int64_t{1536} << 20);
  EXPECT_EQ(parse_bytes("x", "1.5 GiB"), std::int64_t{1536} << 20);
  EXPECT_EQ(parse_bytes("x", "2GB"), 2'000'000'000);
  EXPECT_EQ(parse_bytes("x", "4096"), 4096);
  for (const char* text : {"", "GiB", "-1GiB", "1 parsec", "0", "1e30GiB", "1GiBs"}) {
    EXPECT_THAT(error_of([&] { parse_bytes("x", text); }), HasSubstr("--x: found \"")) << text;
  }
}

// A run of sharded training of bench-c on 2 x 3 threads, and one of another contender.
constexpr const char* kReport = R"({"machine": {"cpu": "Some CPU"},
  "options": {"spec": {"ranks": 2, "threads": 3,
    "shape": {"layers": 6, "dim": 384, "heads": 6, "vocab": 256, "seq": 256, "batch": 4}}},
  "contenders": [{"name": "plain", "runs": [{"fwd": 9, "bwd": 9, "opt": 9}]},
    {"name": "sharded", "runs": [{"fwd": 0.25, "bwd": 0.75, "opt": 0.02, "others_share": 0.5,
                                  "details": {"counters": {"exposed_s": 0.25}}}]}]})";

TEST(Measured, RatesAreThoseOfShardedTraining) {
  const MeasuredRates rates = measured_rates(kReport, "c.json");
  const ModelShape shape = named_model("bench-c");
  EXPECT_DOUBLE_EQ(rates.flops_per_thread, flops_per_token(shape) * 2 * 4 * 256 / 0.75 / 6);
  EXPECT_DOUBLE_EQ(rates.host_bandwidth, 28.0 * 10'844'160 / 0.02);
  EXPECT_EQ(rates.machine, "Some CPU");
  EXPECT_EQ(rates.others_share, 0.5);
}

TEST(Measured, OperationsOfOtherModelsAreNotCounted) {
  for (const std::string change : {R"("model": "vit",)", R"("recompute": 1,)"}) {
    std::string report = kReport;
    const std::string place = change.starts_with("\"model") ? "\"layers\"" : "\"ranks\"";
    report.insert(report.find(place), change);
    EXPECT_THAT(error_of([&] { measured_rates(report, "c.json"); }),
                HasSubstr("a GPT without recomputation"));
  }
}

TEST(Measured, AnotherFileIsAnErrorThatNamesIt) {
  for (const char* text : {"", "[]", "{}", R"({"options": {}, "contenders": []})"}) {
    EXPECT_THAT(error_of([&] { measured_rates(text, "c.json"); }),
                HasSubstr("c.json: not what 'fullshard bench step --json' writes"));
  }
}

}  // namespace
}  // namespace fullshard::planner
