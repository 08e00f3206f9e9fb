#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rendezvous/launch_environment/environment.h"

namespace fullshard::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Environment kRankTwo = {{"RANK", "2"},        {"WORLD_SIZE", "4"},
                              {"LOCAL_RANK", "0"},  {"LOCAL_WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29501"}};

Environment with(const std::string& name, const std::string& value) {
  Environment variables = kRankTwo;
  variables[name] = value;
  return variables;
}

Environment without(const std::string& name) {
  Environment variables = kRankTwo;
  variables.erase(name);
  return variables;
}

TEST(LaunchEnvironment, NothingSetIsAProcessByItself) {
  const LaunchEnvironment env = read({});
  EXPECT_FALSE(env.launched);
  EXPECT_EQ(env.rank, 0);
  EXPECT_EQ(env.world_size, 1);
  EXPECT_EQ(env.local_rank, 0);
  EXPECT_EQ(env.local_world_size, 1);
  EXPECT_EQ(env.describe(), "a process by itself");
}

TEST(LaunchEnvironment, ReadsWhatALauncherSets) {
  const LaunchEnvironment env = read(kRankTwo);
  EXPECT_TRUE(env.launched);
  EXPECT_EQ(env.rank, 2);
  EXPECT_EQ(env.world_size, 4);
  EXPECT_EQ(env.local_rank, 0);
  EXPECT_EQ(env.local_world_size, 2);
  EXPECT_EQ(env.master_addr, "h");
  EXPECT_EQ(env.master_port, 29501);
  EXPECT_FALSE(env.store_fd.has_value());
  EXPECT_FALSE(env.store_is_hosted);
  EXPECT_EQ(env.describe(),
            "rank 2 (RANK), world size 4 (WORLD_SIZE), local rank 0 (LOCAL_RANK), local world size "
            "2 (LOCAL_WORLD_SIZE), master address h (MASTER_ADDR), master port 29501 "
            "(MASTER_PORT)");
}

TEST(LaunchEnvironment, OnlyRankZeroTakesTheListeningSocket) {
  EXPECT_FALSE(read(with("FULLSHARD_STORE_FD", "7")).store_fd.has_value());
  Environment zero = with("FULLSHARD_STORE_FD", "7");
  zero["RANK"] = "0";
  EXPECT_EQ(read(zero).store_fd, 7);
}

TEST(LaunchEnvironment, LocalRanksDefaultToOneHost) {
  Environment variables = without("LOCAL_RANK");
  variables.erase("LOCAL_WORLD_SIZE");
  EXPECT_EQ(read(variables).local_rank, 2);
  EXPECT_EQ(read(variables).local_world_size, 4);
}

TEST(LaunchEnvironment, KnowsTorchrunsStore) {
  Environment variables = with("TORCHELASTIC_USE_AGENT_STORE", "True");
  variables["TORCHELASTIC_RESTART_COUNT"] = "3";
  EXPECT_TRUE(read(variables).store_is_hosted);
  EXPECT_EQ(read(variables).restart, 3);
  EXPECT_THAT(read(variables).describe(), HasSubstr("TORCHELASTIC_USE_AGENT_STORE"));
}

TEST(LaunchEnvironment, AddressAloneIsNotALaunch) {
  EXPECT_FALSE(read({{"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}}).launched);
}

TEST(LaunchEnvironment, NamesTheVariableThatIsNoNumber) {
  for (const auto* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"}) {
    for (const auto* value : {"", "two", "3x", " 1", "-1", "99999999999999999999"}) {
      expect_refused(with(name, value),
                     AllOf(HasSubstr(name), HasSubstr("'" + std::string(value) + "'")));
    }
  }
  expect_refused(with("MASTER_PORT", "65536"), HasSubstr("1 to 65535"));
  expect_refused(with("WORLD_SIZE", "0"), HasSubstr("WORLD_SIZE"));
}

TEST(LaunchEnvironment, NamesWhatIsMissing) {
  expect_refused(without("RANK"), HasSubstr("WORLD_SIZE is set but RANK is not"));
  expect_refused(without("WORLD_SIZE"), HasSubstr("RANK is set but WORLD_SIZE is not"));
  expect_refused(without("LOCAL_RANK"), HasSubstr("LOCAL_WORLD_SIZE is set but LOCAL_RANK is not"));
  expect_refused(without("LOCAL_WORLD_SIZE"),
                 HasSubstr("LOCAL_RANK is set but LOCAL_WORLD_SIZE is not"));
  expect_refused(without("MASTER_ADDR"), HasSubstr("MASTER_ADDR is not"));
  expect_refused(without("MASTER_PORT"), HasSubstr("MASTER_PORT is not"));
  expect_refused({{"LOCAL_RANK", "0"}}, HasSubstr("LOCAL_RANK is set but RANK is not"));
}

TEST(LaunchEnvironment, RefusesRanksOutOfRange) {
  expect_refused(with("RANK", "4"), AllOf(HasSubstr("RANK is 4"), HasSubstr("WORLD_SIZE is 4")));
  expect_refused(with("LOCAL_RANK", "2"), HasSubstr("LOCAL_RANK=2"));
  expect_refused(with("LOCAL_WORLD_SIZE", "5"), HasSubstr("WORLD_SIZE=4"));
}

}  // namespace
}  // namespace fullshard::rendezvous
