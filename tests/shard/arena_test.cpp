#include "shard/arena.h"

#include <gtest/gtest.h>

namespace fullshard::shard {
namespace {

TEST(Arena, ReusesTheLowestGapThatFits) {
  Arena arena(1024);
  const auto first = arena.allocate(100);  // rounded to 128
  const auto second = arena.allocate(64);
  EXPECT_EQ(first, 0);
  EXPECT_EQ(second, 128);
  arena.free(first);
  EXPECT_EQ(arena.allocate(200), 192);  // does not fit the gap
  EXPECT_EQ(arena.allocate(128), 0);
}

TEST(Arena, SaysWhenFullAndCountsBytes) {
  Arena arena(256);
  EXPECT_EQ(arena.allocate(256), 0);
  EXPECT_EQ(arena.allocate(1), -1);
  EXPECT_EQ(arena.used(), 256);
  arena.free(0);
  EXPECT_EQ(arena.used(), 0);
}

TEST(Arena, TheHighWaterMarkFallsToWhatIsInUse) {
  Arena arena(1024);
  const auto low = arena.allocate(64);
  const auto high = arena.allocate(512);
  arena.free(high);
  EXPECT_EQ(arena.take_high_water(), 576);
  EXPECT_EQ(arena.take_high_water(), 64);
  arena.free(low);
  EXPECT_EQ(arena.take_high_water(), 64);
  EXPECT_EQ(arena.take_high_water(), 0);
}

TEST(Arena, GivesEmptyUnitsAnAddressOfTheirOwn) {
  Arena arena(256);
  EXPECT_EQ(arena.allocate(0), 0);
  EXPECT_EQ(arena.allocate(0), 64);
}

}  // namespace
}  // namespace fullshard::shard
