#include <gtest/gtest.h>

#include <thread>

#include "comm/gloo_jobs.h"
#include "comm/ranks.h"
#include "comm/shared_flags.h"

namespace fullshard::comm::testing {
namespace {

bool is_threads(Backend backend) {
  return backend == Backend::kGlooThreads || backend == Backend::kHostsThreads;
}

bool is_hosts(Backend backend) {
  return backend == Backend::kHostsThreads || backend == Backend::kHostsProcesses;
}

void run_threads(Backend backend, int size, const std::function<void(World&)>& body,
                 const CommOptions& options) {
  const auto store = rendezvous::Store::in_memory();
  const SharedFlags joined(size);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        World world = is_hosts(backend) ? join_hosts(rank, hosts_of(backend, size), store, options)
                                        : make_gloo_world(rank, size, store, options);
        joined.meet(rank, size);
        body(world);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
}

}  // namespace

std::vector<Backend> backends() {
  return {Backend::kGlooThreads, Backend::kGlooProcesses, Backend::kHostsThreads,
          Backend::kHostsProcesses};
}

void run_ranks(Backend backend, int size, const std::function<void(World&)>& body,
               const CommOptions& options) {
  if (is_threads(backend)) return run_threads(backend, size, body, options);
  run_ranks_but(-1, backend, size, body, options);
}

void run_ranks_but(int victim, Backend backend, int size, const std::function<void(World&)>& body,
                   const CommOptions& options) {
  ASSERT_TRUE(backend == Backend::kGlooProcesses || backend == Backend::kHostsProcesses)
      << "this test program has only Gloo";
  GlooJob job =
      is_hosts(backend) ? GlooJob(hosts_of(backend, size), options) : GlooJob(size, options);
  const SharedFlags joined(size);
  for (int rank = 0; rank < size; ++rank) {
    job.start(rank, [&](World& world) {
      joined.meet(world.rank(), size);
      body(world);
    });
  }
  for (int rank = 0; rank < size; ++rank) {
    if (rank != victim) job.expect_well(rank);
  }
}

}  // namespace fullshard::comm::testing
