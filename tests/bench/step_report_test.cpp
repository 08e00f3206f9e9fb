#include "bench/step_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bench/contender.h"
#include "bench/table.h"

namespace fullshard::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kMiB = 1 << 20;

StepRun run(double tokens_per_second, bool ours, bool sharded) {
  StepRun run{.result = {.step_seconds = 100 / tokens_per_second,
                         .tokens_per_second = tokens_per_second,
                         .loss = 5.5},
              .wall_seconds = 10,
              .others_share = tokens_per_second / 1e4};
  if (ours) run.result.details = StepDetails{.parameters = 10'800'000, .torch = "2.11.0"};
  if (sharded) {
    run.result.details->counters = StepCounters{.exposed_seconds = 1 / tokens_per_second,
                                                .reduction_seconds = 0.5 / tokens_per_second,
                                                .peak_unsharded_bytes = 12 * kMiB,
                                                .peak_unreduced_gradient_bytes = 7 * kMiB,
                                                .owned_bytes = {30 * kMiB, 10 * kMiB},
                                                .units = {{"blocks.0", 1e-4}, {"(root)", 1e-3}}};
  }
  return run;
}

StepReport report() {
  StepReport report{.options = {.spec = {.shape = named_shape("gpt", "c")},
                                .shape_name = "c",
                                .pairs = 3,
                                .command_line = {"fullshard", "bench", "step"}},
                    .machine = {.cpu = "Some CPU", .cpus = 4, .usable_cpus = 2, .load = {0.5}},
                    .measured = {{kPlain, {}, {}}, {kSharded, {}, {}}, {"peer fsdp2", {}, {}}},
                    .largest_difference = 3e-7};
  for (const double slowness : {1.0, 2.0, 4.0}) {
    report.measured[0].runs.push_back(run(400 / slowness, true, false));
    report.measured[1].runs.push_back(run(500 / slowness, true, true));
    report.measured[2].runs.push_back(run(250, false, false));
  }
  report.measured[0].memory = MemoryPeak{100 * kMiB, 300 * kMiB, 9};
  report.measured[1].memory = MemoryPeak{150 * kMiB, 370 * kMiB, 9};
  return report;
}

TEST(StepReport, RatiosCompareTheRunsOfEachRound) {
  const auto all = speed_ratios(report());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].against, kPlain);
  EXPECT_THAT(all[0].pairs, ElementsAre(1.25, 1.25, 1.25));
  EXPECT_EQ(all[1].against, "peer fsdp2");
  EXPECT_THAT(all[1].pairs, ElementsAre(2.0, 1.0, 0.5));
  EXPECT_DOUBLE_EQ(all[1].spread.median, 1.0);
  EXPECT_DOUBLE_EQ(all[1].spread.low, 0.5);
}

TEST(StepReport, MemoryIsComparedAboveTheBase) {
  const StepReport all = report();
  EXPECT_DOUBLE_EQ(memory_ratio(all, all.measured[1]).value(), 1.1);
  EXPECT_EQ(memory_ratio(all, all.measured[2]), std::nullopt);
}

TEST(StepReport, ExposedTimeIsAShareOfTheStep) {
  const StepReport all = report();
  EXPECT_DOUBLE_EQ(exposed_share(all.measured[1]).value(), 0.01);
  EXPECT_EQ(exposed_share(all.measured[0]), std::nullopt);
  EXPECT_EQ(exposed_share(all.measured[2]), std::nullopt);
}

TEST(StepReport, TextShowsWhatWasMeasuredAndWhatWasNot) {
  const std::string text = report_text(report());
  EXPECT_THAT(text,
              HasSubstr("gpt, shape c: 10.8M parameters, seq 256, batch 4 a rank; 2 ranks x 1 "
                        "thread, FULL_SHARD"));
  EXPECT_THAT(text, HasSubstr("Some CPU, 2 of 4 CPUs usable, load 0.50 at the start"));
  EXPECT_THAT(text, HasSubstr("  plain       200 (100-400)    500.0        -"));
  EXPECT_THAT(text, HasSubstr("250 (125-500)"));
  EXPECT_THAT(text, HasSubstr("  peer fsdp2       1.000 x     0.500-2.000  2.000 1.000 0.500\n"));
  EXPECT_THAT(
      text, HasSubstr("  sharded      220    1.10 x   150        12     30  1.50 x       7.00\n"));
  EXPECT_THAT(
      text, HasSubstr("  peer fsdp2     -         -     -         -      -       -          -\n"));
  EXPECT_THAT(text, HasSubstr("differ by at most 3.0e-07"));
  EXPECT_THAT(text, Not(HasSubstr("not quiet")));
}

TEST(StepReport, OfAModelForImagesCountsThem) {
  StepReport all = report();
  all.options.spec.shape = named_shape("resnet", "18");
  const std::string text = report_text(all);
  EXPECT_THAT(text, HasSubstr("Training step, resnet, shape c: "));
  EXPECT_THAT(text, HasSubstr("images of 32 x 32, batch 16 a rank"));
  EXPECT_THAT(text, HasSubstr("images/s"));
  EXPECT_THAT(text, Not(HasSubstr("tokens/s")));
}

TEST(StepReport, TellsHowUnevenRanksAre) {
  const StepReport all = report();
  EXPECT_DOUBLE_EQ(unevenness(all.measured[1]).value(), 1.5);
  EXPECT_EQ(unevenness(all.measured[0]), std::nullopt);
  EXPECT_EQ(unevenness(all.measured[2]), std::nullopt);
}

TEST(StepReport, TextWarnsOfABusyMachine) {
  StepReport all = report();
  all.measured[2].runs[1].others_share = 0.31;
  EXPECT_THAT(report_text(all), HasSubstr("other processes took up to 31 % of it"));
}

TEST(StepReport, JsonHoldsRunsMachineAndRatios) {
  const auto json = nlohmann::json::parse(report_json(report()));
  EXPECT_EQ(json["command_line"].size(), 3u);
  EXPECT_EQ(json["machine"]["cpu"], "Some CPU");
  EXPECT_EQ(json["machine"]["load_average_at_start"][0], 0.5);
  EXPECT_EQ(json["options"]["spec"]["shape"]["dim"], 384);
  EXPECT_EQ(json["sharded_speed_against"]["peer fsdp2"]["pairs"].size(), 3u);
  EXPECT_EQ(json["sharded_speed_against"]["plain"]["median"], 1.25);
  const auto& sharded = json["contenders"][1];
  EXPECT_EQ(sharded["name"], "sharded");
  EXPECT_EQ(sharded["memory"]["above_base_bytes"], 220 * kMiB);
  EXPECT_EQ(sharded["runs"].size(), 3u);
  EXPECT_EQ(sharded["runs"][2]["details"]["counters"]["peak_unsharded_bytes"], 12 * kMiB);
  EXPECT_EQ(sharded["runs"][2]["tok_s"], 125);
  EXPECT_FALSE(json["contenders"][2].contains("memory"));
}

TEST(StepReport, SaysWhatWasExposed) {
  EXPECT_THAT(report_text(report()), HasSubstr("  exposed           ms a step  of the step\n"
                                               "  all                     4.0        1.0 %\n"
                                               "  adding gradients        2.0        0.5 %\n"
                                               "  unit (root)             1.0        0.2 %\n"
                                               "  unit blocks.0           0.1        0.0 %\n"));
}

TEST(StepReport, HelpDescribesEveryColumn) {
  const std::string help = step_columns_help();
  const std::string text = report_text(report());
  for (const char* heading :
       {"tokens/s", "step ms", "forward", "backward", "optimizer", "exposed", "loss", "others",
        "peak", "of plain", "base", "gathered", "owned", "uneven", "unreduced"}) {
    EXPECT_THAT(help, HasSubstr(std::string("\n  ") + heading));
    EXPECT_THAT(text, HasSubstr(heading));
  }
}

TEST(RenderTable, SetsTheFirstColumnLeftAndTheOthersRight) {
  EXPECT_EQ(render_table({{"name", "x", "longer"}, {"a", "100", "7"}, {"longest name"}}),
            "  name            x  longer\n"
            "  a             100       7\n"
            "  longest name\n");
}

}  // namespace
}  // namespace fullshard::bench
