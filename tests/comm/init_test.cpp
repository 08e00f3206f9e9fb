// World::init over a real store, with ranks as processes whose environment is that of a launcher.

#include "fullshard/comm/init.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "comm/errors.h"
#include "comm/host.h"
#include "comm/processes.h"
#include "comm/shared_flags.h"
#include "comm/values.h"

namespace fullshard::comm::testing {
namespace {

using base::DType;
using base::Error;
using base::ErrorCode;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

const CommOptions kPatient{.timeout = seconds(120)};

struct Listening {
  Listening() : fd(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(fd, any, length), 0);
    EXPECT_EQ(listen(fd, 16), 0);
    EXPECT_EQ(getsockname(fd, any, &length), 0);
    port = ntohs(address.sin_port);
  }
  int fd;
  int port = 0;
};

void set(const char* name, int value) { setenv(name, std::to_string(value).c_str(), 1); }

void become_rank(int rank, int size, int port, std::optional<int> store_fd) {
  set("RANK", rank);
  set("WORLD_SIZE", size);
  set("LOCAL_RANK", rank);
  set("LOCAL_WORLD_SIZE", size);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  set("MASTER_PORT", port);
  if (store_fd) set("FULLSHARD_STORE_FD", *store_fd);
}

void expect_sum_of_ranks(World& world) {
  Values values(DType::kInt64, 1);
  values.set(0, world.rank() + 1);
  world.group().all_reduce(values.buffer(), ReduceOp::kSum, {}).wait();
  EXPECT_EQ(values.get(0), world.size() * (world.size() + 1) / 2);
}

void expect_all_well(Processes& processes, int count) {
  for (int child = 0; child < count; ++child) {
    const Ended ended = processes.wait(child);
    EXPECT_TRUE(ended.exited_well()) << "child " << child << ": " << ended.text;
  }
}

TEST(Init, AProcessByItselfIsAWorldOfOne) {
  World world = init();
  EXPECT_EQ(world.rank(), 0);
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.mesh().replicate->size(), 1);
  expect_sum_of_ranks(world);
}

TEST(Init, WithGpusIsTheSameWorldWhereThereAreNone) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);  // hides those of machines that have some
  EXPECT_EQ(init_with_gpus().device, kHostMemory);
  const Listening listening;
  Processes processes;
  for (int rank = 0; rank < 3; ++rank) {
    processes.start([&, rank] {
      become_rank(rank, 3, listening.port, listening.fd);
      const GpuWorld joined = init_with_gpus(kPatient);
      World world = joined.world;
      EXPECT_EQ(joined.device, kHostMemory);
      EXPECT_EQ(world.size(), 3);
      expect_sum_of_ranks(world);
    });
  }
  expect_all_well(processes, 3);
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(Init, JoinsTheRanksOfALauncherWithoutARaceForThePort) {
  const Listening listening;
  Processes processes;
  for (int rank = 0; rank < 3; ++rank) {
    processes.start([&, rank] {
      become_rank(rank, 3, listening.port, listening.fd);
      World world = init(kPatient);
      EXPECT_EQ(world.rank(), rank);
      EXPECT_EQ(world.size(), 3);
      EXPECT_EQ(world.local_rank(), rank);
      EXPECT_EQ(world.local_size(), 3);
      EXPECT_TRUE(world.group().shares_memory());
      expect_sum_of_ranks(world);
    });
  }
  expect_all_well(processes, 3);
}

TEST(Init, RankZeroMayAskForGlooOnOneHost) {
  const Listening listening;
  Processes processes;
  for (int rank = 0; rank < 3; ++rank) {
    processes.start([&, rank] {
      become_rank(rank, 3, listening.port, listening.fd);
      CommOptions options = kPatient;
      if (rank == 0) options.backend = BackendChoice::kGloo;
      World world = init(options);
      EXPECT_EQ(world.rank(), rank);
      EXPECT_EQ(world.local_rank(), rank);
      EXPECT_EQ(world.local_size(), 3);
      EXPECT_FALSE(world.group().shares_memory());
      expect_sum_of_ranks(world);
      const Mesh mesh = world.mesh({.replicate = 3});
      EXPECT_EQ(mesh.shard->size(), 1);
      EXPECT_EQ(mesh.replicate->size(), 3);
      mesh.replicate->barrier({});
      world.group().barrier({"leaving", -1});
    });
  }
  expect_all_well(processes, 3);
}

// LOCAL_WORLD_SIZE says 4 in become_rank(): who is on which host is asked of the hosts.
TEST(Init, RanksOfAHostShareMemoryInAJobOfSeveral) {
  const Listening listening;
  Processes processes;
  for (int rank = 0; rank < 4; ++rank) {
    processes.start([&, rank] {
      become_rank(rank, 4, listening.port, listening.fd);
      setenv("FULLSHARD_HOST", rank < 2 ? "alpha" : "beta", 1);
      CommOptions options = kPatient;
      options.interface = "lo";
      World world = init(options);
      EXPECT_EQ(world.local_rank(), rank % 2);
      EXPECT_EQ(world.local_size(), 2);
      EXPECT_FALSE(world.group().shares_memory());
      expect_sum_of_ranks(world);
      const Mesh mesh = world.mesh({.replicate = 2});
      EXPECT_TRUE(mesh.shard->shares_memory());
      EXPECT_FALSE(mesh.replicate->shares_memory());
      mesh.shard->allocate_shared(64, "test");
      world.group().barrier({"leaving", -1});
    });
  }
  expect_all_well(processes, 4);
}

// The store goes with rank 0, and its last words must not.
TEST(Init, OverGlooTheDeathOfTheRankWithTheStoreIsNamed) {
  const Listening listening;
  const SharedFlags joined(3);
  Processes processes;
  for (int rank = 0; rank < 3; ++rank) {
    processes.start([&, rank] {
      become_rank(rank, 3, listening.port, listening.fd);
      CommOptions options = kPatient;
      options.backend = BackendChoice::kGloo;
      World world = init(options);
      joined.meet(rank, 3);
      if (rank == 0) raise(SIGKILL);
      const Error error = expect_error(ErrorCode::kPeerLost, [&] { world.group().barrier({}); });
      EXPECT_EQ(error.rank(), 0) << error.what();
    });
  }
  EXPECT_TRUE(processes.wait(1).exited_well());
  EXPECT_TRUE(processes.wait(2).exited_well());
}

// However the one before ended.
TEST(Init, C7_WorldsAreMadeOneAfterTheOtherInAProcess) {
  for (const auto backend : {BackendChoice::kShm, BackendChoice::kHosts, BackendChoice::kGloo}) {
    const Listening listening;
    Processes processes;
    for (int rank = 0; rank < 2; ++rank) {
      processes.start([&, rank] {
        become_rank(rank, 2, listening.port, listening.fd);
        setenv("FULLSHARD_HOST", rank == 0 || backend == BackendChoice::kShm ? "alpha" : "beta", 1);
        CommOptions options = kPatient;
        options.backend = backend;
        options.interface = "lo";
        for (int round = 0; round < 20; ++round) {
          World world = init(options);
          expect_sum_of_ranks(world);
          if (round % 3 != 1) continue;
          if (rank == 1) {
            world.group().abort("enough");
          } else {
            expect_error(ErrorCode::kPeerLost, [&] {
              while (true) world.group().barrier({});
            });
          }
        }
      });
    }
    expect_all_well(processes, 2);
  }
}

TEST(Init, C7_SurvivorsOfADeathMakeAWorldOfTheirOwn) {
  for (const auto backend : {BackendChoice::kShm, BackendChoice::kHosts, BackendChoice::kGloo}) {
    const Listening listening;
    const SharedFlags joined(3);
    Processes processes;
    for (int rank = 0; rank < 3; ++rank) {
      processes.start([&, rank] {
        become_rank(rank, 3, listening.port, listening.fd);
        if (backend == BackendChoice::kHosts)
          setenv("FULLSHARD_HOST", rank < 2 ? "alpha" : "beta", 1);
        CommOptions options = kPatient;
        options.backend = backend;
        options.interface = "lo";
        {
          World world = init(options);
          expect_sum_of_ranks(world);
          joined.meet(rank, 3);
          if (rank == 1) raise(SIGKILL);
          const Error error = expect_error(ErrorCode::kPeerLost, [&] {
            while (true) world.group().barrier({});
          });
          EXPECT_EQ(error.rank(), 1) << error.what();
        }
        auto place = rendezvous::LaunchEnvironment::read();
        place.rank = place.local_rank = rank / 2;
        place.world_size = place.local_world_size = 2;
        place.restart += 1;
        World world = init(options, place);
        EXPECT_EQ(world.size(), 2);
        expect_sum_of_ranks(world);
        world.group().barrier({"leaving", -1});
      });
    }
    EXPECT_TRUE(processes.wait(0).exited_well());
    EXPECT_TRUE(processes.wait(2).exited_well());
  }
}

TEST(Hosts, SharedMemoryIsChosenForOneHostAndBothForSeveral) {
  const std::vector<Host> one(3, this_host());
  const std::vector<Host> two = {{"alpha", "1"}, {"beta", "2"}};
  EXPECT_EQ(choose_backend(BackendChoice::kAuto, one), BackendChoice::kShm);
  EXPECT_EQ(choose_backend(BackendChoice::kGloo, one), BackendChoice::kGloo);
  EXPECT_EQ(choose_backend(BackendChoice::kAuto, two), BackendChoice::kHosts);
  EXPECT_EQ(choose_backend(BackendChoice::kGloo, two), BackendChoice::kGloo);
  const Error error =
      expect_error(ErrorCode::kConfiguration, [&] { choose_backend(BackendChoice::kShm, two); });
  EXPECT_THAT(std::string(error.what()), AllOf(HasSubstr("rank 1 on beta"), HasSubstr("'gloo'")));
}

TEST(Init, JobsThatStartTogetherDoNotMeet) {
  constexpr int kJobs = 4;
  const std::vector<Listening> jobs(kJobs);
  Processes processes;
  for (int job = 0; job < kJobs; ++job) {
    for (int rank = 0; rank < 2; ++rank) {
      processes.start([&, job, rank] {
        const Listening& own = jobs[static_cast<std::size_t>(job)];
        become_rank(rank, 2, own.port, own.fd);
        World world = init(kPatient);
        Values values(DType::kInt64, 1);
        values.set(0, job);
        world.group().all_reduce(values.buffer(), ReduceOp::kMax, {}).wait();
        EXPECT_EQ(values.get(0), job);
      });
    }
  }
  expect_all_well(processes, 2 * kJobs);
}

TEST(Init, ABusyPortIsNamed) {
  const Listening busy;
  Processes processes;
  processes.start([&] {
    become_rank(0, 2, busy.port, std::nullopt);
    const Error error = expect_error(ErrorCode::kSystem, [] { init({.timeout = seconds(10)}); });
    EXPECT_THAT(
        std::string(error.what()),
        AllOf(HasSubstr("127.0.0.1:" + std::to_string(busy.port)), HasSubstr("MASTER_PORT")));
  });
  expect_all_well(processes, 1);
}

TEST(Init, NamesTheRanksThatDidNotCome) {
  const Listening listening;
  Processes processes;
  for (const int rank : {0, 1}) {
    processes.start([&, rank] {
      become_rank(rank, 4, listening.port, listening.fd);
      const Error error = expect_error(ErrorCode::kTimeout, [&] { init({.timeout = seconds(3)}); });
      EXPECT_THAT(std::string(error.what()), HasSubstr("2 of 4 ranks came"));
      EXPECT_THAT(std::string(error.what()), HasSubstr("ranks 2 and 3 did not"));
    });
  }
  expect_all_well(processes, 2);
}

TEST(Init, RefusesAHalfSetEnvironment) {
  Processes processes;
  processes.start([] {
    set("RANK", 0);
    const Error error = expect_error(ErrorCode::kConfiguration, [] { init(); });
    EXPECT_THAT(std::string(error.what()), HasSubstr("WORLD_SIZE"));
  });
  expect_all_well(processes, 1);
}

TEST(Hosts, OneHostIsNoTrouble) {
  const std::vector<Host> hosts(3, this_host());
  EXPECT_EQ(describe_if_several(hosts), "");
}

TEST(Hosts, SeveralHostsAreListedWithTheirRanks) {
  const std::vector<Host> hosts = {{"alpha", "1"}, {"beta", "2"}, {"alpha", "1"}};
  EXPECT_THAT(describe_if_several(hosts),
              AllOf(HasSubstr("2 hosts"), HasSubstr("ranks 0 and 2 on alpha"),
                    HasSubstr("rank 1 on beta")));
}

TEST(Hosts, AnOptionSplitsAHost) {
  const std::vector<Host> hosts = {this_host({.host = "a"}), this_host({.host = "b"}),
                                   this_host({.host = "a"}), this_host()};
  EXPECT_EQ(number_hosts(hosts), (std::vector<int>{0, 1, 0, 2}));
  EXPECT_EQ(hosts[1].name, "b");
}

TEST(Hosts, TravelAsText) {
  const Host here = this_host();
  EXPECT_EQ(host_from_text(to_text(here)).identity, here.identity);
  EXPECT_EQ(host_from_text(to_text(here)).name, here.name);
  EXPECT_EQ(this_host().identity, here.identity);
}

}  // namespace
}  // namespace fullshard::comm::testing
