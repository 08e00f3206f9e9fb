#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "comm/exchanges.h"
#include "comm/processes.h"
#include "comm/ranks.h"
#include "comm/shared_flags.h"
#include "fullshard/base/error.h"
#include "fullshard/comm/c10d/gloo.h"
#include "fullshard/comm/shm.h"
#include "support/networks.h"
#include "support/training.h"

// Whole values are read and loaded by all ranks together; what happens when one is left alone.

namespace fullshard::shard {
namespace {

using base::Error;
using base::ErrorCode;
using comm::testing::SharedFlags;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

enum class Ranks { kThreads, kProcesses, kMessages, kHosts };

class LonelyCalls : public ::testing::TestWithParam<Ranks> {
 protected:
  static void run(int size, const std::function<void(comm::World&)>& body) {
    comm::CommOptions options;
    options.timeout = std::chrono::seconds(2);
    switch (GetParam()) {
      case Ranks::kThreads: return comm::run_as_threads(size, body, options);
      case Ranks::kProcesses:
        return comm::testing::run_ranks(comm::testing::Backend::kShmProcesses, size, body, options);
      case Ranks::kMessages: return testing::run_over_gloo(size, body, options);
      case Ranks::kHosts: return testing::run_on_hosts(2, size / 2, body, options);
    }
  }
};

std::string name_of(const ::testing::TestParamInfo<Ranks>& info) {
  static constexpr const char* kNames[] = {"Threads", "Processes", "Messages", "Hosts"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Ranks, LonelyCalls,
                         ::testing::Values(Ranks::kThreads, Ranks::kProcesses, Ranks::kMessages,
                                           Ranks::kHosts),
                         name_of);

const testing::TrainOptions kOneStep{.steps = 1};

/// A sharded model after a step.
struct Trained {
  explicit Trained(comm::World& world)
      : task(testing::mlp_problem({6, 12, 12, 4})),
        model(task.build()),
        sharded(fully_shard(model, world.mesh())) {
    testing::train_steps(*model, sharded, world, task, kOneStep);
  }
  testing::Problem task;
  std::shared_ptr<testing::Model> model;
  ShardedModule sharded;
};

// Expects `call` to end as it must for a rank that waits for rank 1, and says so to rank 1.
void expect_rank1_missing(comm::World& world, const SharedFlags& failed, const std::string& name,
                          const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "rank " << world.rank() << " was not missed";
  } catch (const Error& error) {
    EXPECT_EQ(base::to_string(error.code()), base::to_string(ErrorCode::kTimeout)) << error.what();
    EXPECT_EQ(error.rank(), 1) << error.what();
    EXPECT_THAT(std::string(error.what()),
                AllOf(HasSubstr("rank 1 is missing"), StartsWith(name + ": ")));
  }
  failed.set(world.rank(), 1);
}

void stay_away_until_missed(const SharedFlags& failed, int size) {
  for (int rank = 0; rank < size; ++rank) {
    if (rank != 1) failed.await(rank);
  }
}

TEST_P(LonelyCalls, C4_ASaveOfOneRankWhosePeerStaysAwayNamesIt) {
  const SharedFlags failed(2);
  run(2, [&](comm::World& world) {
    const Trained trained(world);
    if (world.rank() == 1) return stay_away_until_missed(failed, 2);
    expect_rank1_missing(world, failed, "full_state_dict",
                         [&] { trained.sharded.full_state_dict(true); });
  });
}

// The other rank goes on to its next step. Ranks that share memory need nothing from it, so
// all is well; others find at once that one of them saves.
TEST_P(LonelyCalls, C4_ASaveOfOneRankWhosePeerGoesOnWorksOrIsNamed) {
  const SharedFlags ended(2);
  const SharedFlags failed(2);
  run(2, [&](comm::World& world) {
    const Trained trained(world);
    try {
      if (world.rank() == 0) trained.sharded.full_state_dict(true);
      testing::train_steps(*trained.model, trained.sharded, world, trained.task, kOneStep);
      trained.sharded.full_state_dict();
    } catch (const Error& error) {
      failed.set(world.rank(), 1);
      EXPECT_EQ(error.code(), ErrorCode::kMismatch) << error.what();
      EXPECT_THAT(std::string(error.what()),
                  AllOf(HasSubstr("rank 0: barrier of unit 'full_state_dict'"),
                        HasSubstr("rank 1: all_gather")));
    }
    ended.set(world.rank(), 1);
    ended.await(1 - world.rank());
  });
  const bool over_messages = GetParam() == Ranks::kMessages || GetParam() == Ranks::kHosts;
  EXPECT_EQ(failed.get(0) + failed.get(1), over_messages ? 2 : 0);
}

TEST_P(LonelyCalls, C10_ALoadWithARankThatStandsStillNamesIt) {
  const SharedFlags failed(4);
  run(4, [&](comm::World& world) {
    const Trained trained(world);
    const StateDict state = trained.sharded.full_state_dict();
    if (world.rank() == 1) return stay_away_until_missed(failed, 4);
    expect_rank1_missing(world, failed, "load_state_dict",
                         [&] { trained.sharded.load_state_dict(state); });
  });
}

enum class Between { kSharedMemory, kMessages, kHosts };

class StoppedRanks : public ::testing::TestWithParam<Between> {
 protected:
  using FileExchange = comm::testing::FileExchange;

  // As one of four processes.
  comm::World join(int rank, FileExchange exchange) const {
    comm::CommOptions options{.timeout = std::chrono::minutes(2),
                              .heartbeat_timeout = std::chrono::seconds(2),
                              .interface = "lo"};
    if (GetParam() == Between::kSharedMemory) {
      return comm::make_shm_world(rank, 4, rank, exchange, options);
    }
    const auto store = rendezvous::Store::over_file((folder_.path() / "store").string(), 4);
    if (GetParam() == Between::kMessages) return comm::make_gloo_world(rank, 4, store, options);
    options.host = rank < 2 ? "alpha" : "beta";
    return comm::make_hosts_world(rank, 4, store, options);
  }

  fullshard::testing::TemporaryFolder folder_;
};

std::string name_between(const ::testing::TestParamInfo<Between>& info) {
  static constexpr const char* kNames[] = {"SharedMemory", "Messages", "Hosts"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Between, StoppedRanks,
                         ::testing::Values(Between::kSharedMemory, Between::kMessages,
                                           Between::kHosts),
                         name_between);

// By its heartbeat, long before the deadline.
TEST_P(StoppedRanks, C10_ALoadWithAStoppedRankNamesIt) {
  const SharedFlags ready(4);
  const FileExchange exchange;
  comm::testing::Processes processes;
  for (int rank = 0; rank < 4; ++rank) {
    processes.start([&, rank] {
      comm::World world = join(rank, exchange);
      const Trained trained(world);
      StateDict state, saved;
      for (const auto& [name, value] : trained.sharded.full_state_dict()) {
        state[name] = value + 1;
        saved[name] = value + 1;
      }
      std::vector<at::Tensor> before;
      for (const auto& shard : trained.sharded.named_parameters()) {
        before.push_back(shard.tensor.clone());
      }
      ready.meet(rank, 4);
      if (rank == 1) raise(SIGSTOP);
      try {
        trained.sharded.load_state_dict(state);
        ADD_FAILURE() << "the stopped rank was not missed";
      } catch (const Error& error) {
        EXPECT_EQ(error.rank(), 1) << error.what();
        EXPECT_THAT(std::string(error.what()),
                    AllOf(HasSubstr("rank 1 is lost: it has shown no sign"),
                          StartsWith("load_state_dict: ")));
      }
      testing::expect_bitwise_equal(state, saved);
      for (std::size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(at::equal(trained.sharded.parameters()[i], before[i])) << "half loaded";
      }
    });
  }
  for (const int rank : {0, 2, 3}) {
    const auto ended = processes.wait(rank);
    EXPECT_TRUE(ended.exited_well()) << "rank " << rank << ": " << ended.text;
  }
}

}  // namespace
}  // namespace fullshard::shard
