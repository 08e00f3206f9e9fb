// What every backend does alike when ranks disagree, are late, give up or leave.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <string>
#include <thread>

#include "comm/errors.h"
#include "comm/ranks.h"
#include "comm/shared_flags.h"
#include "comm/values.h"

namespace fullshard::comm::testing {
namespace {

using base::DType;
using base::Error;
using base::ErrorCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class Failures : public ::testing::TestWithParam<Backend> {
 protected:
  void run(int size, const std::function<void(World&)>& body,
           base::Duration timeout = seconds(60)) {
    CommOptions options;
    options.timeout = timeout;
    run_ranks(GetParam(), size, body, options);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Failures, ::testing::ValuesIn(backends()),
                         [](const auto& instance) { return name_of(instance.param); });

std::string text_of(const Error& error) { return error.what(); }

TEST_P(Failures, DifferentOperationsShowBothSidesOnAllRanks) {
  run(3, [](World& world) {
    std::array<float, 8> data{};
    const Error error = expect_error(ErrorCode::kMismatch, [&] {
      if (world.rank() == 1) {
        world.group().barrier({"save", 4});
      } else {
        world.group().all_reduce({data.data(), 8}, ReduceOp::kMean, {"blocks.3", 7}).wait();
      }
    });
    EXPECT_THAT(
        text_of(error),
        AllOf(
            HasSubstr("ranks 0 and 2: all_reduce (mean of 8 float32) of unit 'blocks.3' in step 7"),
            HasSubstr("rank 1: barrier of unit 'save' in step 4")));
  });
}

struct Variant {
  const char* what;
  std::function<void(Group& group, bool odd)> call;
};

TEST_P(Failures, AnyDifferenceOfACallIsAMismatch) {
  const std::vector<Variant> variants = {
      {"dtype",
       [](Group& g, bool odd) {
         Values v(odd ? DType::kFloat32 : DType::kInt32, 4);
         g.all_reduce(v.buffer(), ReduceOp::kSum, {}).wait();
       }},
      {"count",
       [](Group& g, bool odd) {
         Values v(DType::kFloat32, odd ? 4 : 5);
         g.all_reduce(v.buffer(), ReduceOp::kSum, {}).wait();
       }},
      {"reduction",
       [](Group& g, bool odd) {
         Values v(DType::kFloat32, 4);
         g.all_reduce(v.buffer(), odd ? ReduceOp::kSum : ReduceOp::kMax, {}).wait();
       }},
      {"root",
       [](Group& g, bool odd) {
         Values v(DType::kFloat32, 4);
         g.broadcast(v.buffer(), odd ? 0 : 1, {}).wait();
       }},
      {"unit",
       [](Group& g, bool odd) {
         g.barrier({odd ? "a" : "b", 1});
       }},
      {"step",
       [](Group& g, bool odd) {
         g.barrier({"a", odd ? 1 : 2});
       }},
      {"subgroup",
       [](Group& g, bool odd) {
         const std::vector<int> ranks = odd ? std::vector<int>{0, 1} : std::vector<int>{1, 0};
         g.subgroup(ranks);
       }},
      {"parts",
       [](Group& g, bool odd) {
         const std::vector<std::int64_t> counts =
             odd ? std::vector<std::int64_t>{1, 3} : std::vector<std::int64_t>{3, 1};
         Values mine(DType::kFloat32, counts[static_cast<std::size_t>(g.rank())]);
         Values all(DType::kFloat32, 4);
         g.all_gather(mine.input(), all.buffer(), counts, {}).wait();
       }},
  };
  for (const Variant& variant : variants) {
    run(2, [&](World& world) {
      const Error error = expect_error(ErrorCode::kMismatch,
                                       [&] { variant.call(world.group(), world.rank() == 1); });
      EXPECT_THAT(text_of(error), AllOf(HasSubstr("rank 0: "), HasSubstr("rank 1: ")))
          << variant.what;
    });
  }
}

TEST_P(Failures, AllToAllCountsThatDoNotFitAreAMismatchOnAllRanks) {
  run(3, [](World& world) {
    const std::vector<std::int64_t> ones = {1, 1, 1};
    const std::vector<std::int64_t> send =
        world.rank() == 2 ? std::vector<std::int64_t>{1, 2, 1} : ones;
    Values out(DType::kInt32, world.rank() == 2 ? 4 : 3);
    Values in(DType::kInt32, 3);
    const Error error = expect_error(ErrorCode::kMismatch, [&] {
      world.group().all_to_all(out.input(), send, in.buffer(), ones, {}).wait();
    });
    EXPECT_THAT(text_of(error), HasSubstr("rank 2 sends 2 elements to rank 1, which expects 1"));
  });
}

TEST_P(Failures, ATimeoutNamesWhoIsMissingAndWhatItLastDid) {
  const SharedFlags done(2);
  run(
      3,
      [&](World& world) {
        world.group().barrier({"warm-up", 1});
        if (world.rank() == 2) {  // stays in the group, and calls nothing
          done.await(0);
          done.await(1);
          return;
        }
        const Error error = expect_error(ErrorCode::kTimeout, [&] {
          world.group().barrier({"blocks.5", 2});
        });
        done.set(world.rank(), 1);
        EXPECT_EQ(error.rank(), 2);
        EXPECT_THAT(text_of(error),
                    AllOf(HasSubstr("barrier of unit 'blocks.5' in step 2"),
                          HasSubstr("ranks 0 and 1 arrived, rank 2 is missing"),
                          ContainsRegex("rank 2 [a-z ]+ barrier of unit 'warm-up' in step 1")));
      },
      seconds(2));
}

TEST_P(Failures, AnAbortReachesWaitingRanksWithItsReason) {
  run(4, [](World& world) {
    if (world.rank() == 3) {
      world.group().abort("bad sample 17");
      return;
    }
    const Error error = expect_error(ErrorCode::kPeerLost, [&] {
      world.group().barrier({"u", 1});
    });
    EXPECT_EQ(error.rank(), 3);
    EXPECT_THAT(text_of(error), AllOf(HasSubstr("rank 3 gave up: bad sample 17"),
                                      HasSubstr("barrier of unit 'u' in step 1")));
  });
}

TEST_P(Failures, AFailedGroupStaysFailedForEveryRank) {
  run(2, [](World& world) {
    if (world.rank() == 0) world.group().abort("first reason");
    for (int i = 0; i < 3; ++i) {
      const Error error = expect_error(ErrorCode::kPeerLost, [&] { world.group().barrier({}); });
      EXPECT_THAT(text_of(error), HasSubstr("first reason"));
      world.group().abort("later reason");
    }
  });
}

TEST_P(Failures, ARankThatHasLeftIsNotWaitedFor) {
  run(3, [](World& world) {
    world.group().barrier({"last", 5});
    if (world.rank() == 1) return;
    const Error error = expect_error(ErrorCode::kPeerLost, [&] {
      world.group().barrier({"more", 6});
    });
    EXPECT_EQ(error.rank(), 1);
    EXPECT_THAT(text_of(error),
                AllOf(HasSubstr("rank 1"), HasSubstr("unit 'last' in step 5"),
                      HasSubstr("left the group"), HasSubstr("unit 'more' in step 6")));
  });
}

TEST_P(Failures, C7_WorldsAreMadeAndLeftManyTimes) {
  for (int round = 0; round < 20; ++round) {
    run(2, [&](World& world) {
      if (round % 2 == 0) {
        Values values(DType::kInt32, 1);
        values.set(0, round + world.rank());
        world.group().all_reduce(values.buffer(), ReduceOp::kSum, {"", round}).wait();
        ASSERT_EQ(values.get(0), 2 * round + 1);
      } else if (world.rank() == 1) {
        world.group().abort("enough");
      } else {
        expect_error(ErrorCode::kPeerLost, [&] { world.group().barrier({}); });
      }
    });
  }
}

TEST_P(Failures, C7_AGroupDestroyedByAnExceptionTellsTheOthers) {
  run(2, [](World& world) {
    const std::vector<int> both = {0, 1};
    if (world.rank() == 0) {
      try {
        const auto group = world.group().subgroup(both);
        throw std::runtime_error("unwinds the group");
      } catch (const std::runtime_error&) {
      }
      return;
    }
    const auto begin = base::Clock::now();
    {
      const auto group = world.group().subgroup(both);
      const Error error = expect_error(ErrorCode::kPeerLost, [&] { group->barrier({}); });
      EXPECT_EQ(error.rank(), 0);
      EXPECT_THAT(text_of(error), HasSubstr("because of an exception"));
    }
    EXPECT_LT(base::Clock::now() - begin, world.group().options().timeout / 4);
  });
}

TEST_P(Failures, WrongArgumentsChangeNothing) {
  run(2, [](World& world) {
    Group& group = world.group();
    Values four(DType::kFloat32, 4);
    Values flags(DType::kBool, 4);
    Values ints(DType::kInt32, 4);
    const std::vector<std::int64_t> one_count = {4};
    const std::vector<std::int64_t> negative = {5, -1};
    const std::vector<int> none;
    const std::vector<int> twice = {1, 1};
    const std::vector<int> beyond = {2};
    const std::vector<std::function<void()>> calls = {
        [&] {
          group.all_reduce({nullptr, 4}, ReduceOp::kSum, {});
        },
        [&] {
          group.all_reduce({four.data(), -1}, ReduceOp::kSum, {});
        },
        [&] { group.all_reduce(flags.buffer(), ReduceOp::kSum, {}); },
        [&] { group.all_reduce(ints.buffer(), ReduceOp::kMean, {}); },
        [&] { group.broadcast(four.buffer(), 2, {}); },
        [&] { group.all_gather(four.input(), four.buffer(), {}, {}); },
        [&] { group.all_gather(four.input(), ints.buffer(), {}, {}); },
        [&] { group.all_gather(four.input(), four.buffer(), one_count, {}); },
        [&] { group.all_gather(four.input(), four.buffer(), negative, {}); },
        [&] { group.all_to_all(four.input(), one_count, four.buffer(), one_count, {}); },
        [&] { group.subgroup(none); },
        [&] { group.subgroup(twice); },
        [&] { group.subgroup(beyond); },
    };
    for (const auto& call : calls) {
      const Error error = expect_error(ErrorCode::kInvalidArgument, call);
      EXPECT_THAT(text_of(error), Not(::testing::IsEmpty()));
    }
    group.barrier({"still usable", -1});
  });
}

}  // namespace
}  // namespace fullshard::comm::testing
