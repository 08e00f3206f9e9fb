#include "trainer/console.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "trainer/progress_bar.h"
#include "trainer/small_run.h"
#include "trainer/text.h"

namespace fullshard::testing {
namespace {

/// What a terminal shows after this output: it knows line ends, carriage returns and erase-to-end.
std::vector<std::string> screen(const std::string& output) {
  std::vector<std::string> lines(1);
  for (std::size_t i = 0; i < output.size(); ++i) {
    if (output[i] == '\n') {
      lines.emplace_back();
    } else if (output.compare(i, 4, "\r\x1b[K") == 0) {
      lines.back().clear();
      i += 3;
    } else {
      lines.back() += output[i];
    }
  }
  return lines;
}

TEST(Console, NeverMixesTheStatusLineWithOthers) {
  std::ostringstream out;
  const trainer::RunContext context{.out = &out, .terminal = true};
  {
    trainer::Console console(context, true);
    console.print("first\n");
    console.status("half way");
    console.print("second\n");
    EXPECT_THAT(screen(out.str()), ::testing::ElementsAre("first", "second", "half way"));
    console.end_status();
    console.print("third\n");
  }
  EXPECT_THAT(screen(out.str()), ::testing::ElementsAre("first", "second", "third", ""));
}

TEST(Console, RemovesTheStatusLineInTheEnd) {
  std::ostringstream out;
  const trainer::RunContext context{.out = &out, .terminal = true};
  {
    trainer::Console console(context, true);
    console.status("half way");
    EXPECT_THAT(screen(out.str()), ::testing::ElementsAre("half way"));
  }
  EXPECT_THAT(screen(out.str()), ::testing::ElementsAre(""));
}

TEST(Console, WritesPlainLinesWithoutAStatusLine) {
  std::ostringstream out;
  const trainer::RunContext context{.out = &out};
  trainer::Console console(context, false);
  console.status("half way");
  console.print("line\n");
  EXPECT_EQ(out.str(), "line\n");
}

TEST(Console, ShowsARunWithABarAsItShowsOneWithout) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  std::ostringstream out;
  run_small(config, 2, {.out = &out, .terminal = true});
  ASSERT_NE(out.str().find("left"), std::string::npos);
  for (const std::string& line : screen(out.str())) {
    EXPECT_EQ(line.find('\r'), std::string::npos);
    EXPECT_EQ(line.find("left"), std::string::npos) << line;
  }
}

TEST(Console, ShowsABarOnlyWhereItIsWanted) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  const auto has_bar = [&](config::Toggle toggle, bool terminal) {
    config.metrics.progress = toggle;
    config.training.steps = 2;
    std::ostringstream out;
    run_small(config, 1, {.out = &out, .terminal = terminal});
    return out.str().find('\r') != std::string::npos;
  };
  EXPECT_TRUE(has_bar(config::Toggle::kAuto, true));
  EXPECT_FALSE(has_bar(config::Toggle::kAuto, false));
  EXPECT_TRUE(has_bar(config::Toggle::kOn, false));
  EXPECT_FALSE(has_bar(config::Toggle::kOff, true));
}

TEST(ProgressBar, FitsTheTerminal) {
  const trainer::Progress progress{.done = 30, .total = 120, .seconds = 20, .loss = 2.5};
  EXPECT_EQ(trainer::progress_bar(progress, 60, false),
            "[===------------]  25%  30/120 steps  loss 2.500  1:00 left");
  for (int columns = 1; columns < 130; ++columns) {
    EXPECT_LT(trainer::progress_bar(progress, columns, false).size(),
              static_cast<std::size_t>(columns));
  }
}

TEST(ProgressBar, KnowsBeginningAndEnd) {
  EXPECT_THAT(trainer::progress_bar({.done = 0, .total = 9}, 80, false),
              ::testing::HasSubstr("? left"));
  EXPECT_THAT(trainer::progress_bar({.done = 9, .total = 9, .seconds = 4}, 80, false),
              ::testing::HasSubstr("=] 100%  9/9 steps"));
}

TEST(ProgressBar, ColourTakesNoColumns) {
  const trainer::Progress progress{.done = 1, .total = 2};
  std::string coloured = trainer::progress_bar(progress, 70, true);
  for (const char* code : {"\x1b[32m", "\x1b[2m", "\x1b[0m"}) {
    const std::size_t at = coloured.find(code);
    ASSERT_NE(at, std::string::npos);
    coloured.erase(at, std::string_view(code).size());
  }
  EXPECT_EQ(coloured, trainer::progress_bar(progress, 70, false));
}

TEST(Text, GroupsDigits) {
  EXPECT_EQ(trainer::grouped(0), "0");
  EXPECT_EQ(trainer::grouped(999), "999");
  EXPECT_EQ(trainer::grouped(12345), "12,345");
  EXPECT_EQ(trainer::grouped(-1234567), "-1,234,567");
}

TEST(Text, ShowsTimes) {
  EXPECT_EQ(trainer::duration(0.456), "0.46 s");
  EXPECT_EQ(trainer::duration(8.34), "8.3 s");
  EXPECT_EQ(trainer::duration(83), "1 min 23 s");
  EXPECT_EQ(trainer::duration(59.97), "60.0 s");
  EXPECT_EQ(trainer::duration(7384), "2 h 3 min");
  EXPECT_EQ(trainer::clock_time(8), "0:08");
  EXPECT_EQ(trainer::clock_time(7384), "2:03:04");
}

}  // namespace
}  // namespace fullshard::testing
