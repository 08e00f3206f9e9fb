// What backends with shared memory do when ranks are late or give up.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

#include "comm/errors.h"
#include "comm/ranks.h"
#include "comm/values.h"

namespace fullshard::comm::testing {
namespace {

using base::DType;
using base::Error;
using base::ErrorCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class BoardFailures : public ::testing::TestWithParam<Backend> {
 protected:
  void run(int size, const std::function<void(World&)>& body,
           base::Duration timeout = seconds(60)) {
    CommOptions options;
    options.timeout = timeout;
    run_ranks(GetParam(), size, body, options);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, BoardFailures, ::testing::ValuesIn(backends()),
                         [](const auto& instance) { return name_of(instance.param); });

std::string text_of(const Error& error) { return error.what(); }

// Keeps a rank in its groups, doing nothing, until the others have posted that they are through.
void stay_until(const SignalBoard& board, std::size_t index, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    while (board.value(rank, index) == 0) std::this_thread::sleep_for(milliseconds(1));
  }
}

TEST_P(BoardFailures, SegmentsOfDifferentSizesAreAMismatch) {
  run(2, [](World& world) {
    const Error error = expect_error(ErrorCode::kMismatch, [&] {
      world.group().allocate_shared(world.rank() == 1 ? 64 : 128, "x");
    });
    EXPECT_THAT(text_of(error), AllOf(HasSubstr("rank 0: "), HasSubstr("rank 1: ")));
  });
}

TEST_P(BoardFailures, ABoardsTimeoutNamesOperationUnitStepAndMissing) {
  run(
      2,
      [](World& world) {
        auto board = world.group().allocate_signals(4, "ready units");
        if (world.rank() == 1) {
          board->post(3, 6, "gather", {"blocks.7", 8});
          return stay_until(*board, 0, 1);
        }
        board->post(3, 7, "gather", {});
        const Error error = expect_error(ErrorCode::kTimeout, [&] {
          board->wait(3, 7, "gather", {"blocks.0", 9});
        });
        board->post(0, 1, "end", {});
        EXPECT_EQ(error.rank(), 1);
        EXPECT_THAT(
            text_of(error),
            AllOf(HasSubstr("gather of unit 'blocks.0' in step 9"), HasSubstr("ready units"),
                  HasSubstr("rank 0 arrived, rank 1 is missing"),
                  HasSubstr("rank 1 last signalled gather of unit 'blocks.7' in step 8, ")));
      },
      seconds(2));
}

TEST_P(BoardFailures, AnAbortReachesWaitsOnBoards) {
  run(2, [](World& world) {
    auto board = world.group().allocate_signals(1, "board");
    if (world.rank() == 0) {
      world.group().abort("enough");
      return;
    }
    const Error error = expect_error(ErrorCode::kPeerLost, [&] {
      board->wait(0, 1, "reduce", {"u", 1});
    });
    EXPECT_EQ(error.rank(), 0);
    EXPECT_THAT(text_of(error), HasSubstr("enough"));
  });
}

struct OwnException : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(RunAsThreads, RethrowsTheCausalExceptionWithItsType) {
  for (int round = 0; round < 20; ++round) {
    try {
      run_as_threads(4, [](World& world) {
        if (world.rank() == 2) throw OwnException("bad sample 17");
        world.group().barrier({});
      });
      FAIL() << "did not throw";
    } catch (const OwnException& error) {
      EXPECT_STREQ(error.what(), "bad sample 17");
    }
  }
}

TEST(RunAsThreads, TheCauseWinsOverTheEchoOfASubgroup) {
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(run_as_threads(3,
                                [](World& world) {
                                  const std::vector<int> all = {0, 1, 2};
                                  const auto group = world.group().subgroup(all);
                                  if (world.rank() == 1) throw OwnException("cause");
                                  group->barrier({});
                                }),
                 OwnException);
  }
}

TEST(RunAsThreads, RefusesOptionsThatCannotWork) {
  const auto nothing = [](World&) {};
  expect_error(ErrorCode::kInvalidArgument, [&] { run_as_threads(0, nothing); });
  expect_error(ErrorCode::kInvalidArgument,
               [&] { run_as_threads(1, nothing, {.timeout = seconds(0)}); });
  expect_error(ErrorCode::kInvalidArgument, [&] { run_as_threads(1, nothing, {.staging = 100}); });
}

TEST(RunAsThreads, TwoThreadsOfARankMayNotUseAGroupAtOnce) {
  run_as_threads(2, [](World& world) {
    auto board = world.group().allocate_signals(1, "order");
    if (world.rank() == 1) {
      stay_until(*board, 0, 1);
      world.group().barrier({});
      return;
    }
    // One of the two is inside its barrier, which cannot end before the other has been refused.
    std::atomic<int> refused = 0;
    const auto attempt = [&] {
      try {
        world.group().barrier({});
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kMisuse) << error.what();
        ++refused;
        board->post(0, 1, "end", {});
      }
    };
    std::jthread other(attempt);
    attempt();
    other.join();
    EXPECT_EQ(refused, 1);
  });
}

}  // namespace
}  // namespace fullshard::comm::testing
