#include "comm/ranks.h"

#include <gtest/gtest.h>

#include <thread>

#include "comm/exchanges.h"
#include "comm/processes.h"
#include "comm/shared_flags.h"
#include "fullshard/comm/shm.h"

#if defined(__SANITIZE_THREAD__)
#define FULLSHARD_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FULLSHARD_TSAN 1
#endif
#endif

namespace fullshard::comm::testing {
namespace {

void run_local(int size, const std::function<void(World&)>& body, const CommOptions& options) {
  try {
    run_as_threads(size, body, options);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
}

void run_shm_threads(int size, const std::function<void(World&)>& body,
                     const CommOptions& options) {
  MemoryExchange exchange;
  const SharedFlags joined(size);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        World world = make_shm_world(rank, size, rank, exchange, options);
        joined.meet(rank, size);
        body(world);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
}

void run_shm_processes(int victim, int size, const std::function<void(World&)>& body,
                       const CommOptions& options) {
  const FileExchange exchange;
  const SharedFlags joined(size);
  Processes processes;
  for (int rank = 0; rank < size; ++rank) {
    processes.start([&, rank] {
      FileExchange own(exchange);
      World world = make_shm_world(rank, size, rank, own, options);
      joined.meet(rank, size);
      body(world);
    });
  }
  for (int rank = 0; rank < size; ++rank) {
    if (rank == victim) continue;
    const Ended ended = processes.wait(rank);
    EXPECT_TRUE(ended.exited_well()) << "rank " << rank << ": " << ended.text;
  }
}

}  // namespace

std::vector<Backend> backends() {
#ifdef FULLSHARD_TSAN
  return {Backend::kLocal, Backend::kShmThreads};
#else
  return {Backend::kLocal, Backend::kShmThreads, Backend::kShmProcesses};
#endif
}

void run_ranks(Backend backend, int size, const std::function<void(World&)>& body,
               const CommOptions& options) {
  switch (backend) {
    case Backend::kLocal: return run_local(size, body, options);
    case Backend::kShmThreads: return run_shm_threads(size, body, options);
    case Backend::kShmProcesses: return run_shm_processes(-1, size, body, options);
    default: FAIL() << name_of(backend) << " is not in this test program";
  }
}

void run_ranks_but(int victim, Backend backend, int size, const std::function<void(World&)>& body,
                   const CommOptions& options) {
  ASSERT_EQ(backend, Backend::kShmProcesses);
  run_shm_processes(victim, size, body, options);
}

}  // namespace fullshard::comm::testing
