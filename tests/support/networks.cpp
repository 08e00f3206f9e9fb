#include "support/networks.h"

#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/exchanges.h"
#include "fullshard/comm/c10d/gloo.h"
#include "fullshard/comm/shm.h"

namespace fullshard::testing {
namespace {

// Runs `body` on the ranks that `join` makes, as threads. Rethrows what the first rank threw.
void run(int size, const std::function<comm::World(int rank)>& join,
         const std::function<void(comm::World&)>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        comm::World world = join(rank);
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

}  // namespace

void run_over_gloo(int size, const std::function<void(comm::World&)>& body,
                   const comm::CommOptions& options) {
  const auto store = rendezvous::Store::in_memory();
  run(
      size, [&](int rank) { return comm::make_gloo_world(rank, size, store, options); }, body);
}

void run_on_every_backend(int size, const std::function<void(comm::World&)>& body) {
  run_both_ways(size, body);
  comm::testing::MemoryExchange exchange;
  run(
      size, [&](int rank) { return comm::make_shm_world(rank, size, rank, exchange, {}); }, body);
  run_on_hosts(2, size / 2, body);
}

void run_both_ways(int size, const std::function<void(comm::World&)>& body) {
  comm::run_as_threads(size, body);
  run_over_gloo(size, body);
}

void run_on_hosts(int hosts, int ranks, const std::function<void(comm::World&)>& body,
                  const comm::CommOptions& options) {
  const auto store = rendezvous::Store::in_memory();
  const auto join = [&](int rank) {
    comm::CommOptions of_rank = options;
    of_rank.interface = "lo";
    of_rank.host = "host" + std::to_string(rank / ranks);
    return comm::make_hosts_world(rank, hosts * ranks, store, of_rank);
  };
  run(hosts * ranks, join, body);
}

}  // namespace fullshard::testing
