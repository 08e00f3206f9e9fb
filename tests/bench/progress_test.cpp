#include "bench/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "bench/captured.h"

namespace fullshard::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

TEST(Progress, IsALineARunWhereLinesCannotBeRedrawn) {
  const Captured shown;
  const BenchConsole console{.progress = shown.file()};
  Progress progress(console, {"a", "b", "a"});
  for (const char* what : {"first a", "first b", "second a"}) {
    progress.start(what);
    progress.tick();
    progress.finish("done");
  }
  // The time left is told once every kind of the runs that remain has been seen.
  EXPECT_THAT(shown.text(),
              MatchesRegex("\\[1/3\\] first a: done \\([0-9]+ s\\)\n"
                           "\\[2/3\\] first b: done \\([0-9]+ s, about [0-9]+ s left\\)\n"
                           "\\[3/3\\] second a: done \\([0-9]+ s\\)\n"));
}

TEST(Progress, IsRedrawnOnATerminal) {
  const Captured shown;
  const BenchConsole console{.progress = shown.file(), .redraw = true};
  Progress progress(console, {"a"});
  progress.start("first a");
  progress.tick();
  EXPECT_THAT(shown.text(), HasSubstr("[1/1] first a: 0 s so far"));
  EXPECT_THAT(shown.text(), Not(HasSubstr("\n")));
  progress.interrupt();
  progress.interrupt();
  const std::string text = shown.text();
  EXPECT_EQ(std::ranges::count(text, '\n'), 1);
}

TEST(Progress, TimesAreRough) {
  EXPECT_EQ(rough_time(0.4), "0 s");
  EXPECT_EQ(rough_time(119.2), "119 s");
  EXPECT_EQ(rough_time(150), "3 min");
  EXPECT_EQ(rough_time(2 * 3600 + 61), "2 h 1 min");
}

}  // namespace
}  // namespace fullshard::bench
