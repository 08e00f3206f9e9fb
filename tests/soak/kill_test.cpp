#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "comm/exchanges.h"
#include "comm/gloo_jobs.h"
#include "comm/processes.h"
#include "comm/shared_flags.h"
#include "fullshard/comm/shm.h"
#include "support/training.h"

// Four ranks train; at a random moment one of them is killed or stopped. Every other one has to
// leave within its deadline, with an error that names it, and nothing may stay behind.

namespace fullshard::shard {
namespace {

using comm::testing::Ended;
using comm::testing::FileExchange;
using comm::testing::Processes;
using comm::testing::SharedFlags;
using std::chrono::seconds;

constexpr int kRanks = 4;
constexpr base::Duration kTimeout = seconds(3);

enum class Way { kShm, kGloo, kHosts };
constexpr const char* kWays[] = {"shared memory", "Gloo", "two hosts"};

struct Case {
  Way way;
  ShardingStrategy strategy;
  int victim;
  int signal;
  base::Duration after;  // of the first step

  std::string describe() const {
    return std::string(kWays[static_cast<int>(way)]) + ", strategy " +
           std::to_string(static_cast<int>(strategy)) + ", signal " + std::to_string(signal) +
           " to rank " + std::to_string(victim) + " after " +
           std::to_string(base::seconds(after) * 1e3) + " ms";
  }
};

Case draw(std::mt19937& random) {
  const auto below = [&](int end) {
    return std::uniform_int_distribution<int>(0, end - 1)(random);
  };
  Case drawn{};
  const int way = below(5);
  drawn.way = way < 3 ? Way::kShm : way == 3 ? Way::kGloo : Way::kHosts;
  drawn.strategy = below(3) == 0 ? ShardingStrategy::HYBRID_SHARD : ShardingStrategy::FULL_SHARD;
  drawn.victim = below(kRanks);
  drawn.signal = below(4) == 0 ? SIGSTOP : SIGKILL;
  drawn.after = std::chrono::microseconds(below(60'000));
  return drawn;
}

comm::World join(const Case& drawn, int rank, FileExchange exchange,
                 const std::filesystem::path& store) {
  comm::CommOptions options{.timeout = kTimeout, .interface = "lo"};
  if (drawn.way == Way::kShm) return comm::make_shm_world(rank, kRanks, rank, exchange, options);
  const auto keys = rendezvous::Store::over_file(store.string(), kRanks);
  if (drawn.way == Way::kGloo) return comm::make_gloo_world(rank, kRanks, keys, options);
  return comm::testing::join_hosts(rank, {0, 0, 1, 1}, keys, options);
}

// Trains until that fails, and throws unless it does as it should.
void train_until_it_fails(const Case& drawn, comm::World world, const SharedFlags& steps) {
  const auto task = testing::mlp_problem({7, 13, 13, 5});
  const int rank = world.rank();
  const bool hybrid = drawn.strategy == ShardingStrategy::HYBRID_SHARD;
  auto before = base::Clock::now();
  try {
    const auto model = task.build();
    const auto sharded = fully_shard(model, hybrid ? world.mesh({.replicate = 2}) : world.mesh(),
                                     {.sharding_strategy = drawn.strategy});
    for (int step = 1;; ++step) {
      before = base::Clock::now();
      testing::train_steps(*model, sharded, world, task, {.steps = 1});
      steps.set(rank, step);
    }
  } catch (const base::Error& error) {
    const double waited = base::seconds(base::Clock::now() - before);
    EXPECT_EQ(error.rank(), drawn.victim) << error.what();
    EXPECT_EQ(error.code() == base::ErrorCode::kTimeout, drawn.signal == SIGSTOP) << error.what();
    // The step until then, the deadline, and a roll call in the group and in the world's.
    EXPECT_LE(waited, 3 * base::seconds(kTimeout)) << error.what();
  }
}

void run(const Case& drawn) {
  const fullshard::testing::TemporaryFolder folder;
  const FileExchange exchange;
  const SharedFlags steps(kRanks);
  Processes processes;
  for (int rank = 0; rank < kRanks; ++rank) {
    processes.start([&, rank] {
      train_until_it_fails(drawn, join(drawn, rank, exchange, folder.path() / "store"), steps);
    });
  }
  for (int rank = 0; rank < kRanks; ++rank) steps.await(rank);
  std::this_thread::sleep_for(drawn.after);
  ::kill(processes.pid(drawn.victim), drawn.signal);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == drawn.victim) continue;
    const Ended ended = processes.wait(rank);
    EXPECT_TRUE(ended.exited_well())
        << "rank " << rank << " ended with exit code " << ended.exit_code << ", signal "
        << ended.signal << ": " << ended.text;
  }
}

std::ptrdiff_t entries_of(const std::filesystem::path& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

std::ptrdiff_t shared_memory_files() {
  std::ptrdiff_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    count += entry.path().filename().string().rfind("fullshard", 0) == 0 ? 1 : 0;
  }
  return count;
}

TEST(Kills, EverySurvivorNamesTheDeadAndNothingStaysBehind) {
  const char* asked = std::getenv("FULLSHARD_KILLS");
  const char* seed = std::getenv("FULLSHARD_KILL_SEED");
  const int kills = asked == nullptr ? 10 : std::atoi(asked);
  std::mt19937 random(seed == nullptr ? 1U : static_cast<unsigned>(std::atoi(seed)));
  const auto descriptors = entries_of("/proc/self/fd");
  for (int number = 0; number < kills && !HasFailure(); ++number) {
    const Case drawn = draw(random);
    SCOPED_TRACE("kill " + std::to_string(number) + ": " + drawn.describe());
    run(drawn);
    EXPECT_EQ(entries_of("/proc/self/fd"), descriptors);
    EXPECT_EQ(shared_memory_files(), 0);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a process stays behind";
  }
}

}  // namespace
}  // namespace fullshard::shard
