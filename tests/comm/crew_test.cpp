#include "comm/crew.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

namespace fullshard::comm {
namespace {

TEST(Crew, DoesEachPartOnceForEachOfSeveralCallers) {
  constexpr int kCallers = 4;
  constexpr int kRounds = 200;
  constexpr int kParts = 7;
  Crew crew(3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&crew] {
      for (int round = 0; round < kRounds; ++round) {
        std::array<std::atomic<int>, kParts> done{};
        crew.run(kParts, [&done](int part) { ++done[static_cast<std::size_t>(part)]; });
        for (const std::atomic<int>& times : done) ASSERT_EQ(times.load(), 1);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(Crew, HelpersTakePartsWhileTheCallerIsBusy) {
  Crew crew(1);
  std::atomic<bool> other_ran = false;
  crew.run(2, [&](int part) {
    if (part == 1) {
      other_ran = true;
      other_ran.notify_all();
    } else {
      other_ran.wait(false);  // ends only because another thread takes part 1
    }
  });
  EXPECT_TRUE(other_ran);
}

TEST(Crew, WithoutHelpersTheCallerDoesAll) {
  Crew crew(0);
  int done = 0;
  crew.run(5, [&done](int) { ++done; });
  EXPECT_EQ(done, 5);
}

}  // namespace
}  // namespace fullshard::comm
