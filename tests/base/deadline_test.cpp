#include "fullshard/base/deadline.h"

#include <gtest/gtest.h>

#include <thread>

namespace fullshard::base {
namespace {

using namespace std::chrono_literals;

TEST(Deadline, NoTimeAtAllHasPassedAtOnce) {
  const Deadline now = Deadline::after(0s);
  EXPECT_TRUE(now.passed());
  EXPECT_EQ(now.remaining(), Duration{0});
}

TEST(Deadline, NegativeTimeoutsHavePassedAndLeaveNothing) {
  const Deadline past = Deadline::after(-1h);
  EXPECT_TRUE(past.passed());
  EXPECT_EQ(past.remaining(), Duration{0});
}

TEST(Deadline, RemainingOnlyShrinks) {
  const Deadline far = Deadline::after(1h);
  const Duration first = far.remaining();
  const Duration second = far.remaining();
  EXPECT_FALSE(far.passed());
  EXPECT_LE(first, Duration{1h});
  EXPECT_LE(second, first);
  EXPECT_GT(second, Duration{0});
}

TEST(Deadline, PassesWhenItsTimeHasGoneBy) {
  const Deadline soon = Deadline::after(2ms);
  std::this_thread::sleep_for(2ms);
  EXPECT_TRUE(soon.passed());
}

TEST(Deadline, TheLongestTimeoutDoesNotWrapIntoThePast) {
  const Deadline never = Deadline::after(Duration::max());
  EXPECT_FALSE(never.passed());
  EXPECT_GT(never.remaining(), Duration{1h});
}

TEST(Deadline, SecondsForReports) {
  EXPECT_DOUBLE_EQ(seconds(1500ms), 1.5);
  EXPECT_DOUBLE_EQ(seconds(0s), 0);
}

}  // namespace
}  // namespace fullshard::base
