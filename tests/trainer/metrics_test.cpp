#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "trainer/small_run.h"

namespace fullshard::testing {
namespace {

std::vector<nlohmann::json> read_lines(const std::string& path) {
  std::vector<nlohmann::json> objects;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    objects.push_back(nlohmann::json::parse(line));
  }
  return objects;
}

class Metrics : public ::testing::Test {
 protected:
  Metrics() : config(small_config(folder)) { config.metrics.jsonl = folder.path("steps.jsonl"); }

  std::vector<nlohmann::json> run(int world) {
    result = run_small(config, world);
    return read_lines(config.metrics.jsonl);
  }

  const TemporaryFolder folder;
  config::TrainConfig config;
  trainer::TrainResult result;
};

TEST_F(Metrics, HaveOneObjectForEveryStep) {
  const auto steps = run(2);
  ASSERT_EQ(steps.size(), 20U);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].at("step"), i + 1);
    EXPECT_EQ(steps[i].at("loss"), result.losses[i]);
    EXPECT_EQ(steps[i].at("grad_norm"), result.grad_norms[i]);
    EXPECT_EQ(steps[i].at("tokens"), 12 * 16);
  }
}

TEST_F(Metrics, HoldTheRateThatWasUsed) {
  const auto steps = run(1);
  EXPECT_DOUBLE_EQ(steps[0].at("lr"), 5e-3 / 5);  // first of four steps of warm-up
  EXPECT_DOUBLE_EQ(steps[4].at("lr"), 5e-3);
  EXPECT_NEAR(steps[19].at("lr").get<double>(), 5e-4, 1e-12);
}

TEST_F(Metrics, P1_ShareTheStepAmongItsPhases) {
  for (const auto& step : run(2)) {
    double sum = 0;
    for (const char* phase :
         {"data_seconds", "compute_seconds", "exposed_comm_seconds", "optimizer_seconds"}) {
      EXPECT_GE(step.at(phase).get<double>(), 0) << phase;
      sum += step.at(phase).get<double>();
    }
    const double seconds = step.at("step_seconds");
    EXPECT_NEAR(sum, seconds, 1e-9);
    EXPECT_GT(step.at("compute_seconds").get<double>(), 0);
    EXPECT_NEAR(step.at("tokens_per_second").get<double>() * seconds, 12 * 16, 1e-6);
  }
}

TEST_F(Metrics, P1_TellsWhatEachUnitKeptTheRankWaiting) {
  for (const auto& step : run(2)) {
    const auto& units = step.at("exposed_by_unit");
    EXPECT_EQ(units.size(), 3u);  // two blocks and the root
    double sum = 0;
    for (const auto& [name, seconds] : units.items()) sum += seconds.get<double>();
    EXPECT_GT(sum, 0);
    EXPECT_LE(sum, step.at("exposed_comm_seconds").get<double>() + 1e-9);
  }
}

TEST_F(Metrics, P1_CountGathersAndReductionsOfEachStep) {
  const auto steps = run(2);
  constexpr int kUnits = 3;  // two blocks and the root
  for (std::size_t i = 1; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].at("reduce_scatters"), kUnits);
    EXPECT_GE(steps[i].at("all_gathers").get<int>(), kUnits);
    EXPECT_LE(steps[i].at("all_gathers").get<int>(), 2 * kUnits);
  }
}

TEST_F(Metrics, ShowTheBytesOfEachStep) {
  const auto steps = run(2);
  const auto bytes = [&](std::size_t step, const char* key) {
    return steps[step].at(key).get<std::int64_t>();
  };
  for (std::size_t i = 1; i < steps.size(); ++i) {
    const std::int64_t gradients = bytes(i, "gradient_bytes");
    EXPECT_GT(gradients, 0);
    // This rank's half of the model: two moments an element, and a step of 4 bytes a parameter.
    EXPECT_GT(bytes(i, "optimizer_state_bytes"), 2 * gradients);
    EXPECT_LT(bytes(i, "optimizer_state_bytes"), 2 * gradients + 1000);
    EXPECT_GE(bytes(i, "reduce_scatter_bytes"), gradients);
    EXPECT_GT(bytes(i, "all_gather_bytes"), 0);
    EXPECT_GT(bytes(i, "peak_unreduced_gradient_bytes"), 0);
    EXPECT_EQ(bytes(i, "live_unsharded_bytes"), 0);
    EXPECT_EQ(bytes(i, "staging_bytes"), 0);
  }
}

TEST_F(Metrics, ShowThePeaks) {
  const auto sharded = run(2);
  config.parallelism.wrap = config::Wrap::kNone;
  const auto whole = run(2);
  const auto peak = [](const auto& steps) {
    return steps[10].at("peak_unsharded_bytes").template get<int>();
  };
  EXPECT_GT(peak(sharded), 0);
  EXPECT_LT(peak(sharded), peak(whole));
  EXPECT_GT(sharded[10].at("peak_rss_bytes").get<std::int64_t>(), 10'000'000);
}

TEST_F(Metrics, HaveTheValidationLossWhereItWasMeasured) {
  std::vector<int> measured;
  for (const auto& step : run(2)) {
    if (!step.contains("validation_loss")) continue;
    measured.push_back(step.at("step"));
    result.validation_loss = step.at("validation_loss");
  }
  EXPECT_THAT(measured, ::testing::ElementsAre(8, 16, 20));
}

TEST_F(Metrics, ReplaceAnEarlierFile) {
  run(1);
  EXPECT_EQ(run(1).size(), 20U);
}

TEST_F(Metrics, LeaveNoFileWhenNotWanted) {
  config.metrics.jsonl.clear();
  EXPECT_TRUE(run(1).empty());
}

TEST_F(Metrics, PrintLinesInTheFormOfTorchtitan) {
  std::ostringstream out;
  const trainer::RunContext context{.out = &out};
  run_small(config, 2, context);
  const std::regex form(
      R"(step: +\d+  loss: \d\.\d{4}  grad_norm: \d\.\d{4}  memory: \d+\.\d\dGiB\(\d+\.\d%\)  )"
      R"(tps: [\d,]+  mfu: \d+\.\d%)");
  std::vector<int> logged;
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("step: ")) continue;
    EXPECT_TRUE(std::regex_match(line, form)) << line;
    logged.push_back(std::stoi(line.substr(6)));
  }
  EXPECT_THAT(logged, ::testing::ElementsAre(1, 5, 8, 10, 15, 16, 20));
}

TEST_F(Metrics, O4_OnlyRankZeroPrintsAndSaysWhatItTrains) {
  std::array<std::ostringstream, 3> out;
  run_ranks(3, [&](comm::World& world) {
    return trainer::train(config, world, {.out = &out[static_cast<std::size_t>(world.rank())]});
  });
  EXPECT_EQ(out[1].str() + out[2].str(), "");
  for (const char* part :
       {"2 blocks of width 32", "in 3 units", "float32", "3 processes", "FULL_SHARD",
        "20 of 12 sequences x 16 bytes = 192", "GFLOP/s", "nats a byte", "bits a byte",
        "tokens a second", "% exposed communication", "peak memory"}) {
    EXPECT_THAT(out[0].str(), ::testing::HasSubstr(part));
  }
  EXPECT_THAT(out[0].str(), ::testing::HasSubstr(config.data.path));
  EXPECT_EQ(out[0].str().find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace fullshard::testing
