#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
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

// Four ranks shard a model and train it; at a random moment one of them is killed or stopped. Every
// other one has to leave within its deadline, with an error that names it, and nothing may stay
// behind. How long the deaths went unnoticed is printed.

namespace fullshard::shard {
namespace {

using comm::testing::Ended;
using comm::testing::FileExchange;
using comm::testing::Processes;
using comm::testing::SharedFlags;
using std::chrono::seconds;

constexpr int kRanks = 4;
constexpr base::Duration kTimeout = seconds(3);
constexpr base::Duration kHeartbeat = seconds(4);

enum class Way { kShm, kGloo, kHosts };
constexpr const char* kWays[] = {"shared memory", "Gloo", "two hosts"};

struct Case {
  Way way;
  ShardingStrategy strategy;
  int victim;
  int signal;
  bool by_heartbeat;     // a stopped rank is to be found by its heartbeat, not by the deadline
  bool while_sharding;   // and making groups, not while training
  base::Duration after;  // of the joining, or of the first step

  std::string describe() const {
    return std::string(kWays[static_cast<int>(way)]) + ", strategy " +
           std::to_string(static_cast<int>(strategy)) + (by_heartbeat ? ", heartbeat" : "") +
           ", signal " + std::to_string(signal) + " to rank " + std::to_string(victim) + " after " +
           std::to_string(base::seconds(after) * 1e3) + " ms of " +
           (while_sharding ? "sharding" : "training");
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
  drawn.while_sharding = drawn.signal == SIGKILL && below(3) == 0;
  // A death between two ranks' connecting is found by the deadline, which would be long otherwise.
  drawn.by_heartbeat = below(2) == 0 && !drawn.while_sharding;
  drawn.after = std::chrono::microseconds(below(drawn.while_sharding ? 30'000 : 200'000));
  return drawn;
}

comm::World join(const Case& drawn, int rank, FileExchange exchange,
                 const std::filesystem::path& store) {
  comm::CommOptions options{.timeout = kTimeout, .heartbeat_timeout = {}, .interface = "lo"};
  if (drawn.by_heartbeat) {
    options.timeout = 10 * kTimeout;
    options.heartbeat_timeout = kHeartbeat;
  }
  if (drawn.way == Way::kShm) return comm::make_shm_world(rank, kRanks, rank, exchange, options);
  const auto keys = rendezvous::Store::over_file(store.string(), kRanks);
  if (drawn.way == Way::kGloo) return comm::make_gloo_world(rank, kRanks, keys, options);
  return comm::testing::join_hosts(rank, {0, 0, 1, 1}, keys, options);
}

constexpr int kStamps = 1 << 30;

// Microseconds of the clock that all processes share, modulo kStamps.
int stamp() {
  return static_cast<int>(
      std::chrono::duration_cast<std::chrono::microseconds>(base::Clock::now().time_since_epoch())
          .count() %
      kStamps);
}

// Trains until that fails, and throws unless it does as it should.
void train_until_it_fails(const Case& drawn, comm::World world, const SharedFlags& joined,
                          const SharedFlags& steps, const SharedFlags& noticed) {
  const auto task = testing::mlp_problem({7, 13, 13, 5});
  const int rank = world.rank();
  const bool hybrid = drawn.strategy == ShardingStrategy::HYBRID_SHARD;
  joined.set(rank, 1);
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
    noticed.set(rank, stamp());
    const double waited = base::seconds(base::Clock::now() - before);
    EXPECT_EQ(error.rank(), drawn.victim) << error.what();
    const bool late = drawn.signal == SIGSTOP && !drawn.by_heartbeat;
    EXPECT_EQ(error.code() == base::ErrorCode::kTimeout, late) << error.what();
    // The step until then, the deadline, and a roll call in the group and in the world's; or the
    // time without a heartbeat, and the one until others look for news.
    EXPECT_LE(waited, 3 * base::seconds(kTimeout)) << error.what();
  }
}

// Whether the socket at which the ranks met is still there.
bool is_socket_there(FileExchange exchange) {
  const std::string name = exchange.get("comm/shm/address", kTimeout).substr(0, 32);
  std::ifstream file("/proc/net/unix");
  for (std::string line; std::getline(file, line);) {
    if (line.find(name) != std::string::npos) return true;
  }
  return false;
}

// Returns how many seconds after the signal each survivor noticed.
std::vector<double> run(const Case& drawn) {
  const fullshard::testing::TemporaryFolder folder;
  const FileExchange exchange;
  const SharedFlags joined(kRanks);
  const SharedFlags steps(kRanks);
  const SharedFlags noticed(kRanks);
  Processes processes;
  for (int rank = 0; rank < kRanks; ++rank) {
    processes.start([&, rank] {
      train_until_it_fails(drawn, join(drawn, rank, exchange, folder.path() / "store"), joined,
                           steps, noticed);
    });
  }
  const SharedFlags& begun = drawn.while_sharding ? joined : steps;
  for (int rank = 0; rank < kRanks; ++rank) begun.await(rank);
  std::this_thread::sleep_for(drawn.after);
  const int sent = stamp();
  ::kill(processes.pid(drawn.victim), drawn.signal);
  std::vector<double> seconds;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == drawn.victim) continue;
    const Ended ended = processes.wait(rank);
    EXPECT_TRUE(ended.exited_well())
        << "rank " << rank << " ended with exit code " << ended.exit_code << ", signal "
        << ended.signal << ": " << ended.text;
    seconds.push_back(((noticed.get(rank) - sent + kStamps) % kStamps) * 1e-6);
  }
  processes.kill(drawn.victim);
  processes.wait(drawn.victim);
  EXPECT_FALSE(drawn.way == Way::kShm && is_socket_there(exchange));
  return seconds;
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
  const int kills = asked == nullptr ? 20 : std::atoi(asked);
  std::mt19937 random(seed == nullptr ? 1U : static_cast<unsigned>(std::atoi(seed)));
  const auto descriptors = entries_of("/proc/self/fd");
  std::map<Way, std::vector<double>> unnoticed;  // seconds that deaths were
  for (int number = 0; number < kills && !HasFailure(); ++number) {
    const Case drawn = draw(random);
    SCOPED_TRACE("kill " + std::to_string(number) + ": " + drawn.describe());
    const std::vector<double> seconds = run(drawn);
    std::vector<double>& deaths = unnoticed[drawn.way];
    if (drawn.signal == SIGKILL) deaths.insert(deaths.end(), seconds.begin(), seconds.end());
    EXPECT_EQ(entries_of("/proc/self/fd"), descriptors);
    EXPECT_EQ(shared_memory_files(), 0);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a process stays behind";
  }
  for (auto& [way, seconds] : unnoticed) {
    if (seconds.empty()) continue;
    std::ranges::sort(seconds);
    std::printf("%s: %zu times a death was noticed after %.1f ms (median), %.1f ms (longest)\n",
                kWays[static_cast<int>(way)], seconds.size(), seconds[seconds.size() / 2] * 1e3,
                seconds.back() * 1e3);
  }
}

}  // namespace
}  // namespace fullshard::shard
