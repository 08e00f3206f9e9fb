#include "fullshard/comm/rank0_only.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <stdexcept>
#include <thread>

#include "comm/errors.h"
#include "comm/ranks.h"
#include "comm/shared_flags.h"

namespace fullshard::comm::testing {
namespace {

using base::Error;
using base::ErrorCode;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Rank0Only : public ::testing::TestWithParam<Backend> {
 protected:
  static void run(int size, const std::function<void(World&)>& body, base::Duration timeout) {
    CommOptions options;
    options.timeout = timeout;
    run_ranks(GetParam(), size, body, options);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Rank0Only, ::testing::ValuesIn(backends()),
                         [](const auto& instance) { return name_of(instance.param); });

TEST_P(Rank0Only, C9_LongWorkTripsNoTimeoutAndAStallStraightAfterStillDoes) {
  const SharedFlags flags(2);  // the work is done; the stall was noticed
  run(
      2,
      [&](World& world) {
        const base::Duration timeout = world.group().options().timeout;
        rank0_only(world, "tokenising", [&] {
          std::this_thread::sleep_for(timeout * 2);
          flags.set(0, 1);
        });
        EXPECT_EQ(flags.get(0), 1) << "nobody goes on before the work is done";
        if (world.rank() == 1) return flags.await(1);
        const auto begin = base::Clock::now();
        const Error error = expect_error(ErrorCode::kTimeout, [&] {
          world.group().barrier({"after", 1});
        });
        EXPECT_EQ(error.rank(), 1);
        EXPECT_LT(base::Clock::now() - begin, 10 * timeout);  // one, and a busy machine
        flags.set(1, 1);
      },
      std::chrono::seconds(1));
}

TEST_P(Rank0Only, RunsOnRank0AndOnlyThere) {
  const SharedFlags runs(3);
  run(
      3,
      [&](World& world) {
        rank0_only(world, "counting", [&] { runs.set(world.rank(), 1); });
        EXPECT_EQ(runs.get(0), 1);
        EXPECT_EQ(runs.get(1) + runs.get(2), 0);
        world.group().barrier({});
      },
      std::chrono::seconds(60));
}

TEST_P(Rank0Only, AnErrorReachesAllRanksAndTheWorldStaysUsable) {
  run(
      3,
      [](World& world) {
        const Error error = expect_error(ErrorCode::kFile, [&] {
          rank0_only(world, "tokenising", [] { throw Error(ErrorCode::kFile, "no such text"); });
        });
        if (world.rank() == 0) EXPECT_EQ(std::string(error.what()), "no such text");
        if (world.rank() != 0) {
          EXPECT_EQ(error.rank(), 0);
          EXPECT_THAT(std::string(error.what()),
                      AllOf(HasSubstr("rank 0 failed in 'tokenising'"), HasSubstr("no such text")));
        }
        world.group().barrier({});
        try {
          rank0_only(world, "other", [] { throw std::length_error(""); });
          ADD_FAILURE() << "did not throw";
        } catch (const std::length_error&) {
          EXPECT_EQ(world.rank(), 0);
        } catch (const Error& other) {
          EXPECT_EQ(other.code(), ErrorCode::kPeerLost);
        }
        world.group().barrier({});
      },
      std::chrono::seconds(60));
}

TEST_P(Rank0Only, AnErrorOfTheWorkIsNotLostWhenTheOthersHaveFailed) {
  const SharedFlags failed(1);
  run(
      2,
      [&](World& world) {
        if (world.rank() == 1) {
          world.group().abort("no more");
          failed.set(0, 1);
          return;
        }
        const auto work = [&] {
          failed.await(0);
          throw std::length_error("the text has no end");
        };
        EXPECT_THROW(rank0_only(world, "tokenising", work), std::length_error);
      },
      std::chrono::seconds(60));
}

TEST(Rank0OnlyAlone, OfOneRankIsTheWork) {
  World world = single_rank();
  int runs = 0;
  rank0_only(world, "counting", [&] { ++runs; });
  EXPECT_EQ(runs, 1);
  EXPECT_THROW(rank0_only(world, "x", [] { throw std::logic_error("y"); }), std::logic_error);
}

// Of ranks that are processes: only those can be stopped or end by themselves.
std::vector<Backend> process_backends() {
  std::vector<Backend> found = backends();
  std::erase_if(found, [](Backend backend) {
    return backend != Backend::kShmProcesses && backend != Backend::kGlooProcesses &&
           backend != Backend::kHostsProcesses;
  });
  return found;
}

class Rank0OnlyProcesses : public Rank0Only {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Rank0OnlyProcesses);
INSTANTIATE_TEST_SUITE_P(Backends, Rank0OnlyProcesses, ::testing::ValuesIn(process_backends()),
                         [](const auto& instance) { return name_of(instance.param); });

TEST_P(Rank0OnlyProcesses, C9_AStoppedRank0IsNamedWithinTheTimeout) {
  const SharedFlags process(1);
  run(
      2,
      [&](World& world) {
        const auto stall = [&] { rank0_only(world, "tokenising", [] { raise(SIGSTOP); }); };
        if (world.rank() == 0) {
          process.set(0, getpid());
          // It is told why the other one gave up, or finds only that it has gone.
          EXPECT_THROW(stall(), Error);
          return;
        }
        const Error error = expect_error(ErrorCode::kTimeout, stall);
        EXPECT_EQ(error.rank(), 0);
        EXPECT_THAT(std::string(error.what()), HasSubstr("rank 0 only: tokenising"));
        kill(process.get(0), SIGCONT);
      },
      std::chrono::seconds(1));
}

TEST_P(Rank0OnlyProcesses, C9_ADeadRank0IsNamedAtOnce) {
  run(
      3,
      [](World& world) {
        const Error error = expect_error(
            ErrorCode::kPeerLost, [&] { rank0_only(world, "tokenising", [] { _exit(0); }); });
        EXPECT_EQ(error.rank(), 0);
      },
      std::chrono::seconds(100));
}

}  // namespace
}  // namespace fullshard::comm::testing
