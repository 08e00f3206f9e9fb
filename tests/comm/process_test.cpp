// What only ranks that are processes can show: death, joining, and nothing left behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "comm/errors.h"
#include "comm/exchanges.h"
#include "comm/mesh_deaths.h"
#include "comm/processes.h"
#include "comm/values.h"
#include "fullshard/comm/shm.h"

namespace fullshard::comm::testing {
namespace {

using base::DType;
using base::Error;
using base::ErrorCode;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Long against anything that a test waits for: whoever runs into it has not noticed what it should.
const CommOptions kPatient{.timeout = seconds(120)};

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void expect_all_well(Processes& processes, int first, int count) {
  for (int child = first; child < first + count; ++child) {
    const Ended ended = processes.wait(child);
    EXPECT_TRUE(ended.exited_well()) << "child " << child << " exit code " << ended.exit_code
                                     << " signal " << ended.signal << ": " << ended.text;
  }
}

class KilledRank : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, KilledRank, ::testing::Values(0, 1, 3));

TEST_P(KilledRank, IsNamedByAllWhoWaitForIt) {
  const int victim = GetParam();
  FileExchange exchange;
  Processes processes;
  for (int rank = 0; rank < 4; ++rank) {
    processes.start([&, rank] {
      FileExchange own(exchange);
      World world = make_shm_world(rank, 4, rank, own, kPatient);
      world.group().barrier({"blocks.1", 6});
      if (rank == victim) {
        own.set("ready", "");
        pause();
      }
      const Error error = expect_error(ErrorCode::kPeerLost, [&] {
        world.group().barrier({"blocks.2", 7});
      });
      EXPECT_EQ(error.rank(), victim);
      EXPECT_THAT(std::string(error.what()),
                  AllOf(HasSubstr("rank " + std::to_string(victim) + " is lost"),
                        HasSubstr("has ended"), HasSubstr("barrier of unit 'blocks.2' in step 7"),
                        HasSubstr("last finished barrier of unit 'blocks.1' in step 6")));
    });
  }
  exchange.get("ready", kPatient.timeout);
  processes.kill(victim);
  for (int rank = 0; rank < 4; ++rank) {
    const Ended ended = processes.wait(rank);
    if (rank == victim) {
      EXPECT_EQ(ended.signal, SIGKILL);
    } else {
      EXPECT_TRUE(ended.exited_well()) << ended.text;
    }
  }
}

TEST(ShmProcesses, ADeathIsNamedInAllGroupsOfAMesh) {
  FileExchange exchange;
  Processes processes;
  for (int rank = 0; rank < 4; ++rank) {
    processes.start([&, rank] {
      FileExchange own(exchange);
      World world = make_shm_world(rank, 4, rank, own, kPatient);
      expect_death_named_in_all_groups(world);
    });
  }
  expect_all_well(processes, 0, 3);
  EXPECT_EQ(processes.wait(3).signal, SIGKILL);
}

// Rank 0 waits for rank 1 in one group, and that one for rank 3 in another.
TEST(ShmProcesses, AStoppedRankIsNamedInAllGroupsOfAMesh) {
  FileExchange exchange;
  Processes processes;
  for (int rank = 0; rank < 4; ++rank) {
    processes.start([&, rank] {
      FileExchange own(exchange);
      World world = make_shm_world(rank, 4, rank, own, {.timeout = seconds(2)});
      const Mesh mesh = world.mesh({.replicate = 2});
      const Error error = expect_error(ErrorCode::kTimeout, [&] {
        mesh.replicate->barrier({"blocks.0", 1});
        if (rank == 3) raise(SIGSTOP);
        if (rank == 0) mesh.shard->barrier({"blocks.0", 2});
        mesh.replicate->barrier({"blocks.0", 2});
        if (rank != 0) mesh.shard->barrier({"blocks.0", 2});
      });
      EXPECT_EQ(error.rank(), 3) << error.what();
    });
  }
  expect_all_well(processes, 0, 3);
}

TEST(ShmProcesses, ADeathEndsWaitsOnBoards) {
  FileExchange exchange;
  Processes processes;
  for (int rank = 0; rank < 2; ++rank) {
    processes.start([&, rank] {
      FileExchange own(exchange);
      World world = make_shm_world(rank, 2, rank, own, kPatient);
      auto board = world.group().allocate_signals(1, "ready units");
      if (rank == 1) raise(SIGKILL);
      const Error error = expect_error(ErrorCode::kPeerLost, [&] {
        board->wait(0, 1, "gather", {"blocks.0", 3});
      });
      EXPECT_EQ(error.rank(), 1);
    });
  }
  EXPECT_TRUE(processes.wait(0).exited_well());
  EXPECT_EQ(processes.wait(1).signal, SIGKILL);
}

TEST(ShmProcesses, AnExitWithoutLeavingIsADeathToo) {
  FileExchange exchange;
  Processes processes;
  for (int rank = 0; rank < 2; ++rank) {
    processes.start([&, rank] {
      FileExchange own(exchange);
      World world = make_shm_world(rank, 2, rank, own, kPatient);
      if (rank == 1) _exit(3);
      const Error error = expect_error(ErrorCode::kPeerLost, [&] { world.group().barrier({}); });
      EXPECT_EQ(error.rank(), 1);
    });
  }
  EXPECT_TRUE(processes.wait(0).exited_well());
  EXPECT_EQ(processes.wait(1).exit_code, 3);
}

TEST(ShmProcesses, AStoppedRankRunsIntoTheTimeout) {
  FileExchange exchange;
  Processes processes;
  for (int rank = 0; rank < 2; ++rank) {
    processes.start([&, rank] {
      FileExchange own(exchange);
      World world = make_shm_world(rank, 2, rank, own, {.timeout = seconds(3)});
      if (rank == 1) {
        raise(SIGSTOP);
        return;
      }
      const Error error = expect_error(ErrorCode::kTimeout, [&] { world.group().barrier({}); });
      EXPECT_EQ(error.rank(), 1);
    });
  }
  const Ended ended = processes.wait(0);
  EXPECT_TRUE(ended.exited_well()) << ended.text;
}

// Rank 0 waits for a rank that never comes; what it has made by then vanishes with it.
TEST(ShmProcesses, AKilledRankLeavesNoSocketAndNoFile) {
  FileExchange exchange;
  Processes processes;
  processes.start([&] {
    FileExchange own(exchange);
    make_shm_world(0, 2, 0, own, kPatient);
  });
  const std::string name = exchange.get("comm/shm/address", kPatient.timeout).substr(0, 32);
  EXPECT_THAT(read_file("/proc/net/unix"), HasSubstr(name));
  processes.kill(0);
  processes.wait(0);
  EXPECT_THAT(read_file("/proc/net/unix"), ::testing::Not(HasSubstr(name)));
}

TEST(ShmProcesses, MemoryHasNoNameInTheFileSystem) {
  FileExchange exchange;
  Processes processes;
  for (int rank = 0; rank < 2; ++rank) {
    processes.start([&, rank] {
      FileExchange own(exchange);
      World world = make_shm_world(rank, 2, rank, own, kPatient);
      auto segment = world.group().allocate_shared(1 << 20, "test");
      segment->data()[0] = std::byte{1};
      own.set("ready" + std::to_string(rank), "");
      pause();
    });
  }
  for (int rank = 0; rank < 2; ++rank) {
    exchange.get("ready" + std::to_string(rank), kPatient.timeout);
    const std::string maps = read_file("/proc/" + std::to_string(processes.pid(rank)) + "/maps");
    EXPECT_THAT(maps, HasSubstr("/memfd:fullshard (deleted)"));
    EXPECT_THAT(maps, ::testing::Not(HasSubstr("/dev/shm")));
  }
}

TEST(ShmProcesses, JobsOnOneHostDoNotMeet) {
  constexpr int kJobs = 6;
  constexpr int kRanks = 2;
  std::vector<FileExchange> exchanges(kJobs);
  Processes processes;
  for (int job = 0; job < kJobs; ++job) {
    for (int rank = 0; rank < kRanks; ++rank) {
      processes.start([&, job, rank] {
        World world =
            make_shm_world(rank, kRanks, rank, exchanges[static_cast<std::size_t>(job)], kPatient);
        for (int round = 0; round < 50; ++round) {
          Values values(DType::kInt32, 1);
          values.set(0, job * 1000 + rank);
          world.group().all_reduce(values.buffer(), ReduceOp::kSum, {"", round});
          ASSERT_EQ(values.get(0), job * 2000 + 1);
        }
      });
    }
  }
  expect_all_well(processes, 0, kJobs * kRanks);
}

TEST(Joining, NamesTheRanksThatDidNotCome) {
  FileExchange exchange;
  Processes processes;
  for (const int rank : {0, 2}) {
    processes.start([&, rank] {
      FileExchange own(exchange);
      const Error error = expect_error(ErrorCode::kTimeout, [&] {
        make_shm_world(rank, 4, rank, own, {.timeout = rank == 0 ? seconds(2) : seconds(60)});
      });
      EXPECT_EQ(error.rank(), 1);
      EXPECT_THAT(std::string(error.what()), HasSubstr("2 of 4 ranks came, ranks 1 and 3 did not"));
    });
  }
  expect_all_well(processes, 0, 2);
}

TEST(Joining, NoticesTheDeathOfARankThatHadCome) {
  FileExchange exchange;
  Processes processes;
  processes.start([&] {
    FileExchange own(exchange);
    const Error error =
        expect_error(ErrorCode::kPeerLost, [&] { make_shm_world(0, 3, 0, own, kPatient); });
    EXPECT_EQ(error.rank(), 1);
  });
  processes.start([&] {
    FileExchange own(exchange);
    make_shm_world(1, 3, 1, own, kPatient);
  });
  exchange.get("comm/shm/address", kPatient.timeout);
  // Rank 1 cannot be seen to have connected; wherever it is when it dies, rank 0 must not wait for
  // ever.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  processes.kill(1);
  const Ended ended = processes.wait(0);
  EXPECT_TRUE(ended.exited_well()) << ended.text;
}

TEST(Joining, NoticesTheDeathOfRankZero) {
  FileExchange exchange;
  Processes processes;
  processes.start([&] {
    FileExchange own(exchange);
    make_shm_world(0, 3, 0, own, kPatient);
  });
  exchange.get("comm/shm/address", kPatient.timeout);
  processes.start([&] {
    FileExchange own(exchange);
    const Error error =
        expect_error(ErrorCode::kPeerLost, [&] { make_shm_world(1, 3, 1, own, kPatient); });
    EXPECT_EQ(error.rank(), 0);
  });
  processes.kill(0);
  const Ended ended = processes.wait(1);
  EXPECT_TRUE(ended.exited_well()) << ended.text;
}

TEST(Joining, RefusesARankThatComesTwice) {
  FileExchange exchange;
  Processes processes;
  for (const int rank : {0, 1, 1}) {
    processes.start([&, rank] {
      FileExchange own(exchange);
      const Error error =
          expect_error(ErrorCode::kMismatch, [&] { make_shm_world(rank, 3, rank, own, kPatient); });
      EXPECT_THAT(std::string(error.what()), HasSubstr("joined as rank 1, which has come already"));
    });
  }
  expect_all_well(processes, 0, 3);
}

TEST(Joining, RefusesRanksOfAnotherWorldSize) {
  FileExchange exchange;
  Processes processes;
  for (const int rank : {0, 1}) {
    processes.start([&, rank] {
      FileExchange own(exchange);
      const Error error = expect_error(
          ErrorCode::kMismatch, [&] { make_shm_world(rank, 3 + rank, rank, own, kPatient); });
      EXPECT_THAT(std::string(error.what()),
                  HasSubstr("rank 1 joined a world of 4 ranks, rank 0 one of 3"));
    });
  }
  expect_all_well(processes, 0, 2);
}

TEST(Joining, RefusesRanksThatDoNotExist) {
  MemoryExchange exchange;
  expect_error(ErrorCode::kInvalidArgument, [&] { make_shm_world(2, 2, 0, exchange); });
  expect_error(ErrorCode::kInvalidArgument, [&] { make_shm_world(-1, 2, 0, exchange); });
  expect_error(ErrorCode::kInvalidArgument, [&] { make_shm_world(0, 0, 0, exchange); });
}

}  // namespace
}  // namespace fullshard::comm::testing
