#include "support/networks.h"

#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/local/local_world.h"
#include "fullshard/comm/c10d/gloo.h"

namespace fullshard::testing {

void run_over_gloo(int size, const std::function<void(comm::World&)>& body,
                   const comm::CommOptions& options) {
  const auto store = rendezvous::Store::in_memory();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        comm::World world = comm::make_gloo_world(rank, size, store, options);
        body(world);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  threads.clear();
  if (first) std::rethrow_exception(first);
}

void run_both_ways(int size, const std::function<void(comm::World&)>& body) {
  comm::run_as_threads(size, body);
  run_over_gloo(size, body);
}

void run_on_hosts(int hosts, int ranks,
                  const std::function<void(comm::World&, const comm::Mesh&)>& body,
                  const comm::CommOptions& options) {
  std::vector<comm::World> in_host;
  for (int host = 0; host < hosts; ++host) {
    for (comm::World& world : comm::local::make_local_worlds(ranks, options)) {
      in_host.push_back(std::move(world));
    }
  }
  const auto run_rank = [&](comm::World& world) {
    const auto own = static_cast<std::size_t>(world.rank());
    comm::Mesh mesh = world.mesh({.replicate = hosts});
    mesh.shard = in_host[own].mesh().all;
    body(world, mesh);
  };
  run_over_gloo(hosts * ranks, run_rank, options);
}

}  // namespace fullshard::testing
