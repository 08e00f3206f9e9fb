#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "fullshard/base/error.h"
#include "rendezvous/launch_environment/environment.h"

namespace fullshard::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Rank `local` of the second of two hosts with three ranks each.
LaunchEnvironment on_second_host(int local) {
  return read({{"RANK", std::to_string(3 + local)},
               {"WORLD_SIZE", "6"},
               {"LOCAL_RANK", std::to_string(local)},
               {"LOCAL_WORLD_SIZE", "3"},
               {"MASTER_ADDR", "h"},
               {"MASTER_PORT", "29501"}});
}

TEST(Devices, M11_EachRankOfAHostTakesItsOwn) {
  for (int local = 0; local < 3; ++local) {
    EXPECT_EQ(on_second_host(local).device(3), local);
    EXPECT_EQ(on_second_host(local).device(8), local);
  }
  EXPECT_EQ(read({}).device(1), 0);
}

TEST(Devices, M11_WithFewerDevicesThanRanksEveryRankFails) {
  for (int local = 0; local < 3; ++local) {
    try {
      on_second_host(local).device(2);
      FAIL() << "local rank " << local << " took a device";
    } catch (const base::Error& error) {
      EXPECT_EQ(error.code(), base::ErrorCode::kConfiguration);
      EXPECT_THAT(std::string(error.what()), AllOf(HasSubstr("3 ranks"), HasSubstr("2 devices")));
    }
  }
}

}  // namespace
}  // namespace fullshard::rendezvous
