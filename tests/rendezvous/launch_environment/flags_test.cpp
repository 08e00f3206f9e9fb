#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fullshard/rendezvous/launch_environment/flags.h"
#include "rendezvous/launch_environment/environment.h"

namespace fullshard::rendezvous {
namespace {

const Environment kTorch = {{"RANK", "2"},        {"WORLD_SIZE", "4"},
                            {"LOCAL_RANK", "0"},  {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29501"}};

TEST(Flags, PlaceARankWithoutAnyVariable) {
  config::JobConfig job;
  job.rank = 0;
  job.world_size = 3;
  job.local_rank = 0;
  job.local_world_size = 1;
  job.master_addr = "node01";
  job.master_port = 4000;
  const LaunchEnvironment env = read({}, flags_of(job));
  EXPECT_TRUE(env.launched);
  EXPECT_EQ(env.describe(),
            "rank 0 (--job.rank), world size 3 (--job.world_size), local rank 0 (--job.local_rank),"
            " local world size 1 (--job.local_world_size), master address node01 "
            "(--job.master_addr), master port 4000 (--job.master_port)");
}

TEST(Flags, ComeBeforeVariables) {
  const LaunchEnvironment env = read(kTorch, {.rank = 3, .master_addr = "10.0.0.1"});
  EXPECT_EQ(env.rank, 3);
  EXPECT_EQ(env.world_size, 4);
  EXPECT_EQ(env.master_addr, "10.0.0.1");
  EXPECT_EQ(env.master_port, 29501);
  EXPECT_EQ(source_of(env, "rank"), "--job.rank");
  EXPECT_EQ(source_of(env, "world size"), "WORLD_SIZE");
}

TEST(Flags, ThatAreNotGivenSayNothing) {
  const LaunchFlags flags = flags_of({});
  EXPECT_FALSE(flags.rank || flags.world_size || flags.local_rank || flags.local_world_size ||
               flags.master_addr || flags.master_port);
}

TEST(Flags, APortAloneIsNotALaunch) { EXPECT_FALSE(read({}, {.master_port = 4000}).launched); }

}  // namespace
}  // namespace fullshard::rendezvous
