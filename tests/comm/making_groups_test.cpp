// What becomes of a group over messages that cannot be made, after its ranks have met for it.

#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/c10d/gloo_backend.h"
#include "comm/errors.h"
#include "comm/local/local_world.h"
#include "comm/processes.h"
#include "comm/shared_flags.h"
#include "support/forwarding_group.h"
#include "support/temporary_folder.h"

namespace fullshard::comm::testing {
namespace {

using base::Error;
using base::ErrorCode;
using c10d::C10dGroup;
using c10d::ConnectRanks;
using rendezvous::Store;

// Long against anything that a test waits for: whoever runs into it has not noticed what it should.
const CommOptions kPatient{.timeout = std::chrono::minutes(2)};

C10dGroup join(const Store& store, const ConnectRanks& connect, int rank,
               c10d::Placement placement) {
  const int size = static_cast<int>(placement.host_of.size());
  return {store,
          connect,
          [] {},
          rank,
          trace::GroupTrace::of_world(rank, size, kPatient),
          std::move(placement),
          kPatient};
}

/// Connects as Gloo does, but for groups of two, where it calls `meet` instead.
ConnectRanks connect_but_pairs(const std::function<void(int rank, const Store&)>& meet) {
  return [meet, gloo = c10d::gloo_over_tcp("127.0.0.1")](
             const Store& store, int rank, std::span<const int> members, base::Duration timeout,
             const c10d::Look& look) {
    if (members.size() == 2) meet(rank, store);
    return gloo(store, rank, members, timeout, look);
  };
}

/// Ranks 2 and 3 of four make a group. Rank 3 comes to its `end` when the other one waits for it.
void expect_death_named(const std::function<void(const Store&)>& end) {
  const fullshard::testing::TemporaryFolder folder;
  const SharedFlags waits(1);
  Processes processes;
  for (int rank = 0; rank < 4; ++rank) {
    processes.start([&, rank] {
      const auto connect = connect_but_pairs([&](int member, const Store& store) {
        if (member == 0) return waits.set(0, 1);
        waits.await(0);
        end(store);
      });
      auto group = join(Store::over_file((folder.path() / "store").string(), 4), connect, rank,
                        {{0, 0, 0, 0}, nullptr});
      const Error error = expect_error(ErrorCode::kPeerLost, [&] {
        group.subgroup(std::array{2, 3});
        while (true) group.barrier({"blocks.0", 1});
      });
      EXPECT_EQ(error.rank(), 3) << error.what();
    });
  }
  for (int rank = 0; rank < 3; ++rank) {
    const Ended ended = processes.wait(rank);
    EXPECT_TRUE(ended.exited_well()) << "rank " << rank << ": " << ended.text;
  }
  EXPECT_EQ(processes.wait(3).signal, SIGKILL);
}

TEST(MakingGroups, ADeathBeforeARankSaysWhereItListensIsNamedAtOnce) {
  expect_death_named([](const Store&) { raise(SIGKILL); });
}

TEST(MakingGroups, ADeathBeforeARankConnectsIsNamedAtOnce) {
  expect_death_named([](const Store& store) {
    store.set("address/3", "127.0.0.1");
    raise(SIGKILL);
  });
}

class NoMemory final : public fullshard::testing::ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;
  std::shared_ptr<Group> subgroup(std::span<const int>) override {
    throw Error(ErrorCode::kSystem, "no memory for a subgroup");
  }
};

// Ranks 0 and 2 wait for rank 3: one over messages, the other in the memory of their host.
TEST(MakingGroups, ARankThatCannotTellsAllHosts) {
  const auto store = Store::in_memory();
  const std::vector<World> first_host = local::make_local_worlds(2, kPatient);
  const std::vector<World> second_host = local::make_local_worlds(2, kPatient);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto& host = rank < 2 ? first_host : second_host;
      auto inside = host[static_cast<std::size_t>(rank % 2)].mesh().all;
      if (rank == 3) inside = std::make_shared<NoMemory>(std::move(inside));
      auto group =
          join(store, c10d::gloo_over_tcp("127.0.0.1"), rank, {{0, 0, 1, 1}, std::move(inside)});
      const Error error = expect_error(ErrorCode::kSystem, [&] {
        group.subgroup(std::array{0, 2, 3});
        while (true) group.barrier({"blocks.0", 1});
      });
      EXPECT_EQ(error.rank(), 3) << error.what();
    });
  }
}

}  // namespace
}  // namespace fullshard::comm::testing
