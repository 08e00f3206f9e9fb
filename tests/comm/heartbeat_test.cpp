// Ranks whose processes are stopped, for good or for a while.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/errors.h"
#include "comm/ranks.h"
#include "comm/shared_flags.h"

namespace fullshard::comm::testing {
namespace {

using base::Error;
using base::ErrorCode;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A deadline that no test reaches.
CommOptions watched(base::Duration heartbeat) {
  return {.timeout = std::chrono::minutes(2), .heartbeat_timeout = heartbeat};
}

std::vector<Backend> processes() {
  std::vector<Backend> all = backends();
  std::erase_if(all, [](Backend b) { return !name_of(b).ends_with("Processes"); });
  return all;
}

class Heartbeats : public ::testing::TestWithParam<Backend> {};

INSTANTIATE_TEST_SUITE_P(Backends, Heartbeats, ::testing::ValuesIn(processes()),
                         [](const auto& instance) { return name_of(instance.param); });

TEST_P(Heartbeats, AStoppedRankIsNamedLongBeforeTheDeadline) {
  const SharedFlags warm(3);
  run_ranks_but(
      1, GetParam(), 3,
      [&](World& world) {
        world.group().barrier({"warm-up", 1});
        warm.meet(world.rank(), 3);
        if (world.rank() == 1) raise(SIGSTOP);
        const auto begin = base::Clock::now();
        const Error error = expect_error(ErrorCode::kPeerLost, [&] {
          world.group().barrier({"blocks.4", 2});
        });
        EXPECT_EQ(error.rank(), 1) << error.what();
        EXPECT_THAT(std::string(error.what()),
                    AllOf(HasSubstr("rank 1 is lost: it has shown no sign of life for"),
                          HasSubstr("its process"), HasSubstr("'warm-up' in step 1")));
        EXPECT_LT(base::Clock::now() - begin, world.group().options().timeout / 6);
      },
      watched(seconds(2)));
}

/// Rank 3 of four comes to its `end`; the others learn of it although they never wait for it.
void expect_named_in_groups_without_it(Backend backend, const std::function<void(World&)>& end,
                                       base::Duration heartbeat,
                                       ErrorCode code = ErrorCode::kPeerLost) {
  const SharedFlags joined(4);
  run_ranks_but(
      3, backend, 4,
      [&](World& world) {
        const Mesh mesh = world.mesh({.replicate = 2});
        joined.meet(world.rank(), 4);
        if (world.rank() == 3) end(world);
        const Error error = expect_error(code, [&] {
          Group& group = world.rank() < 2 ? *mesh.shard : *mesh.replicate;
          while (true) group.barrier({"blocks.0", 1});
        });
        EXPECT_EQ(error.rank(), 3) << error.what();
      },
      watched(heartbeat));
}

TEST_P(Heartbeats, AStoppedRankEndsGroupsWithoutIt) {
  expect_named_in_groups_without_it(
      GetParam(), [](World&) { raise(SIGSTOP); }, seconds(2));
}

// A death is known at once where processes share memory, but only to those who look.
TEST_P(Heartbeats, ADeathEndsGroupsWithoutTheDead) {
  expect_named_in_groups_without_it(
      GetParam(), [](World&) { raise(SIGKILL); }, seconds(0));
}

// Such as a device that breaks.
TEST_P(Heartbeats, AFailureOfTheSystemEndsGroupsWithoutIt) {
  const auto fail = [](World& world) {
    world.group().fail(Error(ErrorCode::kSystem, "the GPU fell off the bus", 3));
    pause();
  };
  expect_named_in_groups_without_it(GetParam(), fail, seconds(2), ErrorCode::kSystem);
}

TEST_P(Heartbeats, ARankThatComputesForLongIsNotLost) {
  run_ranks(
      GetParam(), 3,
      [](World& world) {
        const auto until = base::Clock::now() + seconds(5);
        while (world.rank() == 2 && base::Clock::now() < until) {
        }
        world.group().barrier({});
      },
      watched(seconds(2)));
}

TEST_P(Heartbeats, ARankThatHasLeftIsNotMissed) {
  run_ranks(
      GetParam(), 3,
      [](World& world) {
        const auto both = world.group().subgroup(std::vector<int>{0, 2});
        if (world.rank() == 1) return;
        const auto until = base::Clock::now() + seconds(7);
        for (int going = 1; going != 0;) {
          going = base::Clock::now() < until ? 1 : 0;
          both->all_reduce({&going, 1, base::DType::kInt32}, ReduceOp::kMin, {}).wait();
        }
      },
      watched(seconds(3)));
}

// A job that is suspended and continued as a whole; whoever wakes first has heard nobody for long.
TEST_P(Heartbeats, AJobThatStoodStillGoesOn) {
  run_ranks(
      GetParam(), 3,
      [](World& world) {
        std::vector<std::int64_t> pids(3);
        std::int64_t own = getpid();
        world.group()
            .all_gather({&own, 1, base::DType::kInt64}, {pids.data(), 3, base::DType::kInt64}, {},
                        {})
            .wait();
        const pid_t waker = world.rank() == 0 ? fork() : -1;
        if (waker == 0) {  // only what a fork of several threads may call
          for (const std::int64_t pid : pids) ::kill(static_cast<pid_t>(pid), SIGSTOP);
          sleep(5);
          for (const std::int64_t pid : pids) ::kill(static_cast<pid_t>(pid), SIGCONT);
          _exit(0);
        }
        const auto until = base::Clock::now() + seconds(8);
        for (int going = 1; going != 0;) {
          going = base::Clock::now() < until ? 1 : 0;
          world.group().all_reduce({&going, 1, base::DType::kInt32}, ReduceOp::kMin, {}).wait();
        }
        if (waker > 0) waitpid(waker, nullptr, 0);
      },
      watched(seconds(2)));
}

// A rank that keeps a board has let go of the world, and shows no more signs.
TEST_P(Heartbeats, ARankThatKeepsABoardIsNotMissed) {
  if (!name_of(GetParam()).starts_with("Shm")) return;
  const SharedFlags let_go(1);
  run_ranks(
      GetParam(), 2,
      [&](World& world) {
        auto board = world.group().allocate_signals(1, "blocks.0");
        if (world.rank() == 0) {
          world = single_rank();
          let_go.set(0, 1);
          std::this_thread::sleep_for(seconds(7));
          board->post(0, 1, "gather", {});
        } else {
          let_go.await(0);
          board->post(0, 1, "gather", {});
          board->wait(0, 1, "gather", {});
        }
      },
      watched(seconds(3)));
}

TEST_P(Heartbeats, AreNotAskedForWhenTheTimeoutIsZero) {
  CommOptions options = watched(seconds(0));
  options.timeout = seconds(3);
  run_ranks_but(
      1, GetParam(), 2,
      [](World& world) {
        if (world.rank() == 1) raise(SIGSTOP);
        const Error error = expect_error(ErrorCode::kTimeout, [&] { world.group().barrier({}); });
        EXPECT_EQ(error.rank(), 1);
      },
      options);
}

}  // namespace
}  // namespace fullshard::comm::testing
