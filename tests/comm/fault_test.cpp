// What every backend does alike when a rank is late, does not come, says something wrong, dies or
// stops: in each call, all others leave with an error that names it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "comm/errors.h"
#include "comm/ranks.h"
#include "comm/shared_flags.h"
#include "comm/values.h"
#include "support/faulty_group.h"

namespace fullshard::comm::testing {
namespace {

using base::DType;
using base::Error;
using base::ErrorCode;
using fullshard::testing::Dropped;
using fullshard::testing::Fault;
using fullshard::testing::FaultyGroup;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int kVictim = 1;

const OpTag kTag{"blocks.3", 7};

struct Operation {
  std::string name;
  bool needs_shared_memory;
  std::function<void(Group&)> call;
};

std::vector<Operation> operations() {
  const auto with = [](std::int64_t count, const std::function<Work(Group&, Values&)>& start) {
    return [=](Group& group) {
      Values values = make_input(DType::kInt32, group.rank(), count);
      start(group, values).wait();
    };
  };
  static const std::vector<std::int64_t> ones(kRanks, 1);
  static const std::vector<int> all = {0, 1, 2};
  return {
      {"all_gather", false,
       with(kRanks,
            [](Group& group, Values& values) {
              return group.all_gather(values.part(group.rank(), 1), values.buffer(), {}, kTag);
            })},
      {"reduce_scatter", false,
       with(kRanks,
            [](Group& group, Values& values) {
              return group.reduce_scatter(values.input(), values.part(group.rank(), 1),
                                          ReduceOp::kSum, {}, kTag);
            })},
      {"all_reduce", false,
       with(100'000,
            [](Group& group, Values& values) {
              return group.all_reduce(values.buffer(), ReduceOp::kSum, kTag);
            })},
      {"broadcast", false,
       with(100'000, [](Group& group,
                        Values& values) { return group.broadcast(values.buffer(), 0, kTag); })},
      {"all_to_all", false,
       [](Group& group) {
         Values out = make_input(DType::kInt32, group.rank(), kRanks);
         Values in(DType::kInt32, kRanks);
         group.all_to_all(out.input(), ones, in.buffer(), ones, kTag).wait();
       }},
      {"barrier", false, [](Group& group) { group.barrier(kTag); }},
      {"subgroup", false, [](Group& group) { group.subgroup(all); }},
      {"allocate_shared", true, [](Group& group) { group.allocate_shared(64, "blocks.3"); }},
      {"wait", true,
       [](Group& group) {
         const auto board = group.allocate_signals(1, "blocks.3");
         board->post(0, 1, "gather", kTag);
         board->wait(0, 1, "gather", kTag);
         board->post(0, 2, "gather", kTag);
         board->wait(0, 2, "gather", kTag);
       }},
  };
}

bool shares_memory(Backend backend) {
  return backend == Backend::kLocal || backend == Backend::kShmThreads ||
         backend == Backend::kShmProcesses || backend == Backend::kMixedStandIn;
}

// What a rank does in a group of which rank 1 has the fault.
using Check = std::function<void(Group& group, const std::function<void()>& call)>;

std::shared_ptr<Group> world_group(World& world) { return world.mesh().all; }

// Of the same ranks in another order.
std::shared_ptr<Group> turned_subgroup(World& world) {
  return world.group().subgroup(std::vector<int>{2, 1, 0});
}

class Faults : public ::testing::TestWithParam<Backend> {
 protected:
  /// Each of the named operations in a world of its own; without names, all that there are. In the
  /// world's group, or in one that `choose` makes of it.
  void run(Fault fault, const Check& check, base::Duration timeout = seconds(60),
           const std::vector<std::string>& names = {},
           const std::function<std::shared_ptr<Group>(World&)>& choose = world_group) {
    for (const Operation& operation : operations()) {
      const bool named = std::count(names.begin(), names.end(), operation.name) > 0;
      if (!names.empty() && !named) continue;
      if (operation.needs_shared_memory && !shares_memory(GetParam())) continue;
      SCOPED_TRACE(operation.name);
      fault.rank = kVictim;
      fault.operation = operation.name;
      const SharedFlags made(kRanks);
      const auto body = [&](World& world) {
        world.group().barrier({"warm-up", 1});
        const auto chosen = choose(world);
        // Nobody may die while another one is still on its way to here.
        made.meet(world.rank(), kRanks);
        FaultyGroup group(chosen, fault);
        check(group, [&] { operation.call(group); });
      };
      const bool fatal = fault.kind == Fault::Kind::kKill || fault.kind == Fault::Kind::kStop;
      if (fatal) {
        run_ranks_but(kVictim, GetParam(), kRanks, body, {.timeout = timeout});
      } else {
        run_ranks(GetParam(), kRanks, body, {.timeout = timeout});
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Faults, ::testing::ValuesIn(backends()),
                         [](const auto& instance) { return name_of(instance.param); });

TEST_P(Faults, ALateRankIsWaitedFor) {
  const Fault late{.kind = Fault::Kind::kDelay, .delay = milliseconds(30)};
  run(late, [](Group&, const auto& call) { EXPECT_NO_THROW(call()); });
}

// One of each kind, as each takes until the deadline.
TEST_P(Faults, ARankThatDoesNotComeIsNamedWhenTheDeadlinePasses) {
  for (const char* name : {"all_reduce", "wait"}) {
    const SharedFlags done(kRanks);
    const Fault drop{.kind = Fault::Kind::kDrop, .meanwhile = [&] {
                       done.await(0);
                       done.await(2);
                     }};
    run(drop,
        [&](Group& group, const auto& call) {
          if (group.rank() == kVictim) {
            EXPECT_THROW(call(), Dropped);
            return;
          }
          const Error error = expect_error(ErrorCode::kTimeout, call);
          done.set(group.rank(), 1);
          EXPECT_EQ(error.rank(), kVictim) << error.what();
          EXPECT_THAT(std::string(error.what()), HasSubstr("blocks.3"));
        },
        seconds(2), {name});
  }
}

// But for a board's wait: what it is about is nobody else's matter.
TEST_P(Faults, ARankThatSaysSomethingElseIsAMismatchForAll) {
  std::vector<std::string> names;
  for (const Operation& operation : operations()) names.push_back(operation.name);
  names.pop_back();
  run(
      {.kind = Fault::Kind::kCorrupt},
      [](Group&, const auto& call) {
        const Error error = expect_error(ErrorCode::kMismatch, call);
        EXPECT_THAT(std::string(error.what()), HasSubstr("rank 1: "));
      },
      seconds(60), names);
}

// Nothing adds check sums to data: whoever writes wrong bytes is believed.
TEST_P(Faults, WrongBytesInSharedMemoryAreNotSeen) {
  if (!shares_memory(GetParam())) return;
  run_ranks(GetParam(), kRanks, [](World& world) {
    FaultyGroup group(world.mesh().all,
                      {.kind = Fault::Kind::kCorrupt, .rank = kVictim, .operation = "data"});
    const auto segment = group.allocate_shared(64, "blocks.3");
    if (group.rank() == kVictim) segment->data();
    EXPECT_NO_THROW(group.barrier({}));
    EXPECT_EQ(segment->data()[0], std::byte{1});
  });
}

class FatalFaults : public Faults {};

std::vector<Backend> processes() {
  std::vector<Backend> chosen;
  for (const Backend backend : backends()) {
    if (name_of(backend).find("Processes") != std::string::npos) chosen.push_back(backend);
  }
  return chosen;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FatalFaults);
INSTANTIATE_TEST_SUITE_P(Backends, FatalFaults, ::testing::ValuesIn(processes()),
                         [](const auto& instance) { return name_of(instance.param); });

TEST_P(FatalFaults, ARankThatDiesIsNamedByAll) {
  run({.kind = Fault::Kind::kKill}, [](Group&, const auto& call) {
    EXPECT_EQ(expect_error(ErrorCode::kPeerLost, call).rank(), kVictim);
  });
}

TEST_P(FatalFaults, ARankThatDiesInASubgroupIsNamedByAll) {
  run(
      {.kind = Fault::Kind::kKill},
      [](Group&, const auto& call) {
        EXPECT_EQ(expect_error(ErrorCode::kPeerLost, call).rank(), kVictim);
      },
      seconds(60), {}, turned_subgroup);
}

TEST_P(FatalFaults, ARankThatStopsIsNamedByAllWhenTheDeadlinePasses) {
  run({.kind = Fault::Kind::kStop},
      [](Group&, const auto& call) {
        EXPECT_EQ(expect_error(ErrorCode::kTimeout, call).rank(), kVictim);
      },
      seconds(2), {"all_reduce", "wait"});
}

}  // namespace
}  // namespace fullshard::comm::testing
