// What ranks that are connected over Gloo show beyond the suites of all backends: joining, death,
// operations in the background, leaving.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "comm/errors.h"
#include "comm/gloo_jobs.h"
#include "comm/mesh_deaths.h"
#include "comm/ranks.h"
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

// Long against anything that a test waits for: whoever runs into it has not noticed what it should.
const CommOptions kPatient{.timeout = seconds(120)};

void run_threads(int size, const std::function<void(World&)>& body) {
  run_ranks(Backend::kGlooThreads, size, body, kPatient);
}

TEST(Gloo, CountsLocalRanksAndSharesNoMemory) {
  run_threads(3, [](World& world) {
    EXPECT_EQ(world.local_rank(), world.rank());
    EXPECT_EQ(world.local_size(), 3);
    EXPECT_FALSE(world.group().shares_memory());
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { world.group().allocate_shared(64, "parameters"); },
             [&] { world.group().allocate_signals(1, "parameters"); }}) {
      EXPECT_THAT(std::string(expect_error(ErrorCode::kMisuse, call).what()),
                  HasSubstr("'parameters'"));
    }
  });
}

// The means that gradients are: over all ranks at once, or over the two directions of a mesh.
TEST(Gloo, MeansAreMeansInEveryArrangement) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    run_threads(4, [&](World& world) {
      constexpr std::int64_t kCount = 4 * 333;
      const Mesh mesh = world.mesh({.replicate = 2});
      const auto value = [](int rank, std::int64_t i) {
        return static_cast<double>((rank + 1) * (i % 50) * 4);
      };
      Values gradient(dtype, kCount);
      for (std::int64_t i = 0; i < kCount; ++i) gradient.set(i, value(world.rank(), i));
      Values replicated = gradient;
      world.group().all_reduce(replicated.buffer(), ReduceOp::kMean, {}).wait();
      Values sharded(dtype, kCount / 4);
      world.group()
          .reduce_scatter(gradient.input(), sharded.buffer(), ReduceOp::kMean, {}, {})
          .wait();
      Values hybrid(dtype, kCount / 2);
      mesh.shard->reduce_scatter(gradient.input(), hybrid.buffer(), ReduceOp::kMean, {}, {}).wait();
      mesh.replicate->all_reduce(hybrid.buffer(), ReduceOp::kMean, {}).wait();
      const auto mean = [&](std::int64_t i) { return 2.5 * value(0, i); };
      for (std::int64_t i = 0; i < kCount; ++i) ASSERT_EQ(replicated.get(i), mean(i));
      for (std::int64_t i = 0; i < sharded.count(); ++i) {
        ASSERT_EQ(sharded.get(i), mean(world.rank() * sharded.count() + i));
      }
      for (std::int64_t i = 0; i < hybrid.count(); ++i) {
        ASSERT_EQ(hybrid.get(i), mean(mesh.shard->rank() * hybrid.count() + i));
      }
    });
  }
}

TEST(Gloo, OperationsGoOnWhileTheCallerDoesOtherThings) {
  const SharedFlags started(1);
  run_threads(2, [&](World& world) {
    Values mine = make_input(DType::kInt64, world.rank(), 1000);
    Values all(DType::kInt64, 2000);
    if (world.rank() == 1) started.await(0);
    Work work = world.group().all_gather(mine.input(), all.buffer(), {}, {"blocks.0", 1});
    if (world.rank() == 0) {
      EXPECT_FALSE(work.done());  // rank 1 has not even called
      started.set(0, 1);
    }
    while (!work.done()) std::this_thread::yield();
    ASSERT_EQ(all.get(1999), input_value(DType::kInt64, 1, 999));
    work.wait();
  });
}

TEST(Gloo, ErrorsInTheBackgroundAreKeptForEveryWait) {
  run_threads(2, [](World& world) {
    Values values(DType::kFloat32, world.rank() == 0 ? 4 : 5);
    Work work = world.group().all_reduce(values.buffer(), ReduceOp::kSum, {"blocks.0", 1});
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(std::string(expect_error(ErrorCode::kMismatch, [&] { work.wait(); }).what()),
                  HasSubstr("sum of 5 float32"));
    }
    EXPECT_FALSE(work.done());
    expect_error(ErrorCode::kMismatch, [&] { world.group().barrier({}); });
  });
}

// Ranks 2 and 3 do not come before ranks 0 and 1 have left, which wait for them in other groups
// than the one that has failed.
TEST(Gloo, WhatFailsInTheBackgroundEndsTheWaitsInOtherGroups) {
  const SharedFlags failed(4);
  run_threads(4, [&](World& world) {
    const Mesh mesh = world.mesh({.replicate = 2});
    if (world.rank() >= 2) {
      failed.await(world.rank() - 2);
      return;
    }
    Values values(DType::kFloat32, world.rank() == 0 ? 4 : 5);
    const Work work = mesh.shard->all_reduce(values.buffer(), ReduceOp::kSum, {"blocks.1", 1});
    expect_error(ErrorCode::kMismatch, [&] { mesh.replicate->barrier({"blocks.0", 1}); });
    failed.set(world.rank(), 1);
  });
}

TEST(Gloo, AnExceptionWithAnOperationUnderWayFreesTheOthers) {
  const SharedFlags gave_up(1);
  run_threads(2, [&](World& world) {
    if (world.rank() == 0) {
      try {
        Values values(DType::kFloat32, 100);
        const Work work =
            world.group().all_reduce(values.buffer(), ReduceOp::kSum, {"blocks.0", 1});
        throw std::runtime_error("bad sample 17");
      } catch (const std::runtime_error&) {
        gave_up.set(0, 1);
      }
      return;
    }
    gave_up.await(0);
    const Error error = expect_error(ErrorCode::kPeerLost, [&] { world.group().barrier({}); });
    EXPECT_EQ(error.rank(), 0);
    EXPECT_THAT(std::string(error.what()), HasSubstr("because of an exception"));
  });
}

class KilledGlooRank : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, KilledGlooRank, ::testing::Values(0, 1, 3));

TEST_P(KilledGlooRank, IsNamedByAllWhoWaitForIt) {
  const int victim = GetParam();
  const SharedFlags ready(4);
  GlooJob job(4, kPatient);
  for (int rank = 0; rank < 4; ++rank) {
    job.start(rank, [&, rank](World& world) {
      world.group().barrier({"blocks.1", 6});
      ready.set(rank, 1);
      if (rank == victim) pause();
      const Error error = expect_error(ErrorCode::kPeerLost, [&] {
        world.group().barrier({"blocks.2", 7});
      });
      EXPECT_EQ(error.rank(), victim) << error.what();
      EXPECT_THAT(std::string(error.what()),
                  AllOf(HasSubstr("rank " + std::to_string(victim) + " is lost"),
                        HasSubstr("barrier of unit 'blocks.2' in step 7"),
                        HasSubstr("last seen in barrier of unit 'blocks.1' in step 6")));
    });
  }
  for (int rank = 0; rank < 4; ++rank) ready.await(rank);
  job.processes().kill(victim);
  for (int rank = 0; rank < 4; ++rank) {
    if (rank != victim) job.expect_well(rank);
  }
}

// Gathers large parts until the group fails. The last rank counts the rounds.
Error gather_until_error(World& world, ErrorCode code, const SharedFlags& rounds) {
  Values mine(DType::kFloat32, 4 << 20);
  Values all(DType::kFloat32, world.size() * mine.count());
  const bool counts = world.rank() == world.size() - 1;
  return expect_error(code, [&] {
    while (true) {
      world.group().all_gather(mine.input(), all.buffer(), {}, {"blocks.0", 1}).wait();
      if (counts) rounds.set(0, rounds.get(0) + 1);
    }
  });
}

void await_rounds(const SharedFlags& rounds) {
  while (rounds.get(0) < 2) std::this_thread::yield();
}

void expect_named_in_all_groups(GlooJob& job) {
  for (int rank = 0; rank < 4; ++rank) job.start(rank, expect_death_named_in_all_groups);
  for (int rank = 0; rank < 3; ++rank) job.expect_well(rank);
  EXPECT_EQ(job.processes().wait(3).signal, SIGKILL);
}

TEST(GlooProcesses, ADeathIsNamedInAllGroupsOfAMesh) {
  GlooJob over_gloo(4, kPatient);
  expect_named_in_all_groups(over_gloo);
  GlooJob on_hosts({0, 0, 1, 1}, kPatient);
  expect_named_in_all_groups(on_hosts);
}

// Rank 0 waits for rank 1 in one group, and that one for rank 3 in another.
void expect_stopped_named_in_all_groups(GlooJob& job) {
  const SharedFlags rounds(1);
  for (int rank = 0; rank < 4; ++rank) {
    job.start(rank, [&, rank](World& world) {
      const Mesh mesh = world.mesh({.replicate = 2});
      const Error error = expect_error(ErrorCode::kTimeout, [&] {
        while (true) {
          mesh.replicate->barrier({"blocks.0", 1});
          mesh.shard->barrier({"blocks.0", 1});
          if (rank == 3) rounds.set(0, rounds.get(0) + 1);
        }
      });
      EXPECT_EQ(error.rank(), 3) << error.what();
    });
  }
  while (rounds.get(0) < 2) std::this_thread::yield();
  ::kill(job.processes().pid(3), SIGSTOP);
  for (int rank = 0; rank < 3; ++rank) job.expect_well(rank);
}

TEST(GlooProcesses, AStoppedRankIsNamedInAllGroupsOfAMesh) {
  GlooJob over_gloo(4, {.timeout = seconds(2)});
  expect_stopped_named_in_all_groups(over_gloo);
  GlooJob on_hosts({0, 0, 1, 1}, {.timeout = seconds(2)});
  expect_stopped_named_in_all_groups(on_hosts);
}

// Within a host ranks wait for each other in shared memory, and the one that is stopped may be on
// another host.
TEST(GlooProcesses, WithSeveralHostsAStoppedRankIsNamedByAll) {
  for (const int victim : {0, 3}) {
    const SharedFlags rounds(1);
    GlooJob job({0, 0, 1, 1}, {.timeout = seconds(3)});
    for (int rank = 0; rank < 4; ++rank) {
      job.start(rank, [&, rank](World& world) {
        Values mine(DType::kFloat32, 1 << 20);
        Values all(DType::kFloat32, 4 * mine.count());
        const Error error = expect_error(ErrorCode::kTimeout, [&] {
          while (true) {
            world.group().all_gather(mine.input(), all.buffer(), {}, {"blocks.0", 1}).wait();
            world.group()
                .reduce_scatter(all.input(), mine.buffer(), ReduceOp::kMean, {}, {"blocks.0", 1})
                .wait();
            if (rank == victim) rounds.set(0, rounds.get(0) + 1);
          }
        });
        EXPECT_EQ(error.rank(), victim) << error.what();
      });
    }
    while (rounds.get(0) < 2) std::this_thread::yield();
    ::kill(job.processes().pid(victim), SIGSTOP);
    for (int rank = 0; rank < 4; ++rank) {
      if (rank != victim) job.expect_well(rank);
    }
  }
}

// Rank 2 waits for a message of rank 0, which waits for rank 1 inside their host and cannot say so.
TEST(GlooProcesses, WithSeveralHostsTheHastiestRankNamesTheOneThatIsStopped) {
  const SharedFlags rounds(1);
  GlooJob job({0, 0, 1, 1}, kPatient);
  for (int rank = 0; rank < 4; ++rank) {
    job.start_alone([&, rank] {
      World world = job.join(rank, {.timeout = seconds(rank == 2 ? 2 : 60)});
      Values all = make_input(DType::kFloat32, rank, 1 << 22);
      Values mine(DType::kFloat32, all.count() / 4);
      const Error error = expect_error(ErrorCode::kTimeout, [&] {
        while (true) {
          world.group()
              .reduce_scatter(all.input(), mine.buffer(), ReduceOp::kMean, {}, {"blocks.0", 1})
              .wait();
          if (rank == 1) rounds.set(0, rounds.get(0) + 1);
        }
      });
      EXPECT_EQ(error.rank(), 1) << error.what();
    });
  }
  while (rounds.get(0) < 2) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // into the next one
  ::kill(job.processes().pid(1), SIGSTOP);
  for (const int rank : {0, 2, 3}) job.expect_well(rank);
}

// The connection that carries the data does not report the loss of a rank in the middle of a
// message; the one beside it does.
TEST(GlooProcesses, ADeathInTheMiddleOfALargeMessageIsNoticed) {
  const SharedFlags rounds(1);
  GlooJob job(3, kPatient);
  for (int rank = 0; rank < 3; ++rank) {
    job.start(rank, [&](World& world) {
      const Error error = gather_until_error(world, ErrorCode::kPeerLost, rounds);
      EXPECT_EQ(error.rank(), 2) << error.what();
    });
  }
  await_rounds(rounds);
  job.processes().kill(2);
  job.expect_well(0);
  job.expect_well(1);
}

TEST(GlooProcesses, AStoppedRankRunsIntoTheTimeout) {
  GlooJob job(3, {.timeout = seconds(3)});
  const SharedFlags joined(3);
  for (int rank = 0; rank < 3; ++rank) {
    job.start(rank, [&, rank](World& world) {
      joined.meet(rank, 3);
      if (rank == 1) raise(SIGSTOP);
      const Error error = expect_error(ErrorCode::kTimeout, [&] {
        world.group().barrier({"blocks.4", 2});
      });
      EXPECT_EQ(error.rank(), 1);
      EXPECT_THAT(std::string(error.what()),
                  AllOf(HasSubstr("barrier of unit 'blocks.4' in step 2"),
                        HasSubstr("ranks 0 and 2 arrived, rank 1 is missing")));
    });
  }
  job.expect_well(0);
  job.expect_well(2);
}

// The rank whose deadline passes first may be waiting for one that waits for the stopped one.
class HastyGlooRank : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, HastyGlooRank, ::testing::Values(0, 1));

TEST_P(HastyGlooRank, NamesTheOneThatStopsInTheMiddleOfALargeMessage) {
  const SharedFlags rounds(1);
  GlooJob job(3, kPatient);
  for (int rank = 0; rank < 3; ++rank) {
    job.start_alone([&, rank] {
      World world = job.join(rank, {.timeout = seconds(rank == GetParam() ? 2 : 60)});
      const Error error = gather_until_error(world, ErrorCode::kTimeout, rounds);
      EXPECT_EQ(error.rank(), 2) << error.what();
      EXPECT_THAT(std::string(error.what()),
                  AllOf(HasSubstr("all_gather"), HasSubstr("rank 2 does not answer")));
    });
  }
  await_rounds(rounds);
  ::kill(job.processes().pid(2), SIGSTOP);
  job.expect_well(0);
  job.expect_well(1);
}

TEST(GlooProcesses, AnAbortReachesRanksInTheMiddleOfALargeMessage) {
  const SharedFlags rounds(1);
  GlooJob job(2, kPatient);
  for (int rank = 0; rank < 2; ++rank) {
    job.start(rank, [&, rank](World& world) {
      std::jthread quitter;
      if (rank == 0) {
        quitter = std::jthread([&] {
          await_rounds(rounds);
          world.group().abort("bad sample 17");
        });
      }
      const Error error = gather_until_error(world, ErrorCode::kPeerLost, rounds);
      EXPECT_THAT(std::string(error.what()), HasSubstr("rank 0 gave up: bad sample 17"));
    });
  }
  job.expect_well(0);
  job.expect_well(1);
}

TEST(GlooJoining, NamesTheRanksThatDidNotCome) {
  const auto store = rendezvous::Store::in_memory();
  std::vector<std::jthread> ranks;
  for (const int rank : {0, 2}) {
    ranks.emplace_back([&, rank] {
      const Error error = expect_error(
          ErrorCode::kTimeout, [&] { make_gloo_world(rank, 4, store, {.timeout = seconds(1)}); });
      EXPECT_EQ(error.rank(), 1);
      EXPECT_THAT(std::string(error.what()), HasSubstr("2 of 4 ranks came, ranks 1 and 3 did not"));
    });
  }
}

TEST(GlooJoining, RefusesARankThatComesTwiceOrForAnotherWorld) {
  const auto store = rendezvous::Store::in_memory();
  std::jthread first(
      [&] { expect_error(ErrorCode::kMismatch, [&] { make_gloo_world(0, 2, store); }); });
  const auto other = expect_error(ErrorCode::kMismatch, [&] { make_gloo_world(1, 3, store); });
  EXPECT_THAT(std::string(other.what()),
              HasSubstr("rank 0 joined a world of 2 ranks, rank 1 one of 3"));
  first.join();
  const auto twice = expect_error(ErrorCode::kMismatch, [&] { make_gloo_world(1, 2, store); });
  EXPECT_THAT(std::string(twice.what()), HasSubstr("joined as rank 1, which has come already"));
  expect_error(ErrorCode::kInvalidArgument, [&] { make_gloo_world(2, 2, store); });
}

TEST(GlooJoining, TakesTheInterfaceThatIsNamed) {
  const auto store = rendezvous::Store::in_memory();
  std::vector<std::jthread> ranks;
  for (const int rank : {0, 1}) {
    ranks.emplace_back([&, rank] {
      World world = make_gloo_world(rank, 2, store.with_prefix("by name"), {.interface = "lo"});
      world.group().barrier({});
      const Error error = expect_error(ErrorCode::kConfiguration, [&] {
        make_gloo_world(rank, 2, store.with_prefix("wrong"), {.interface = "ib7"});
      });
      EXPECT_THAT(std::string(error.what()), AllOf(HasSubstr("comm.interface"), HasSubstr("'ib7'"),
                                                   HasSubstr("lo (127.0.0.1)")));
    });
  }
}

}  // namespace
}  // namespace fullshard::comm::testing
