#include <gtest/gtest.h>

#include <thread>

#include "comm/gloo_jobs.h"
#include "comm/ranks.h"

namespace fullshard::comm::testing {
namespace {

void run_threads(int size, const std::function<void(World&)>& body, const CommOptions& options) {
  const auto store = rendezvous::Store::in_memory();
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        World world = make_gloo_world(rank, size, store, options);
        body(world);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
}

void run_processes(int size, const std::function<void(World&)>& body, const CommOptions& options) {
  GlooJob job(size, options);
  for (int rank = 0; rank < size; ++rank) job.start(rank, body);
  for (int rank = 0; rank < size; ++rank) job.expect_well(rank);
}

}  // namespace

std::vector<Backend> backends() { return {Backend::kGlooThreads, Backend::kGlooProcesses}; }

void run_ranks(Backend backend, int size, const std::function<void(World&)>& body,
               const CommOptions& options) {
  if (backend == Backend::kGlooThreads) return run_threads(size, body, options);
  ASSERT_EQ(backend, Backend::kGlooProcesses) << "this test program has only Gloo";
  run_processes(size, body, options);
}

}  // namespace fullshard::comm::testing
