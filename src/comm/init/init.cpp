#include "fullshard/comm/init.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/c10d/store_exchange.h"
#include "comm/host.h"
#include "comm/shared/report.h"
#include "fullshard/base/error.h"
#include "fullshard/base/log.h"
#include "fullshard/base/text.h"
#include "fullshard/comm/c10d/gloo.h"
#include "fullshard/comm/shm.h"
#include "fullshard/rendezvous/launch_environment.h"
#include "fullshard/rendezvous/store.h"

namespace fullshard::comm {
namespace {

using base::Deadline;
using base::Error;
using base::ErrorCode;
using rendezvous::LaunchEnvironment;
using rendezvous::Store;

constexpr base::Duration kVerdictGrace = std::chrono::seconds(2);

rendezvous::TcpStoreOptions store_options(const LaunchEnvironment& env, base::Duration timeout) {
  rendezvous::TcpStoreOptions options;
  options.host = env.master_addr;
  options.port = env.master_port;
  options.timeout = timeout;
  return options;
}

// What a process keeps for the worlds that it makes one after the other.
struct Visits {
  std::mutex mutex;  // guards what follows
  std::map<std::string, Store> served;
  std::map<std::string, int> worlds;  // that were begun
};

// The job's store, as this restart of the job and its next world see it. Rank 0 serves it until its
// process ends, so that worlds can be made whatever became of those before.
Store open_store(const LaunchEnvironment& env, base::Duration timeout) {
  static auto& visits = *new Visits();  // outlives whatever ends last
  const std::string place = fmt::format("{}:{}", env.master_addr, env.master_port);
  int world = 0;
  {
    const std::lock_guard lock(visits.mutex);
    world = visits.worlds[fmt::format("{} {} {}", place, env.rank, env.restart)]++;
    if (env.rank == 0 && !env.store_is_hosted && !visits.served.contains(place)) {
      rendezvous::TcpStoreOptions options = store_options(env, timeout);
      options.serve = true;
      options.listen_fd = env.store_fd;
      visits.served.emplace(place, Store::over_tcp(options));
    }
  }
  return Store::over_tcp(store_options(env, timeout))
      .with_prefix(fmt::format("fullshard/{}/{}", env.restart, world));
}

std::string host_key(int rank) { return fmt::format("host/{}", rank); }

// Waits until every rank has said where it is. `hosts` gets the places of the ranks that came.
void collect_hosts(const Store& store, const LaunchEnvironment& env, Deadline deadline,
                   std::vector<Host>& hosts) {
  std::vector<int> absent;
  for (int rank = 0; rank < env.world_size; ++rank) {
    try {
      hosts.push_back(host_from_text(store.get(host_key(rank), deadline.remaining())));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
      absent.push_back(rank);
    }
  }
  if (absent.empty()) return;
  throw Error(ErrorCode::kTimeout,
              fmt::format("joining the world timed out: {} of {} ranks came to the store at {}:{}, "
                          "{} did not",
                          hosts.size(), env.world_size, env.master_addr, env.master_port,
                          base::name_ranks(absent)),
              absent.front());
}

// The store goes with this process, so a bad verdict has to be heard before rank 0 leaves. Ranks
// that came may have left by themselves: that ends after the grace.
void tell(const Store& store, const Error& error, std::size_t ranks_that_came) {
  store.set("verdict", fmt::format("error {} {}", static_cast<int>(error.code()), error.what()));
  const Deadline patience = Deadline::after(kVerdictGrace);
  while (store.add("heard", 0) + 1 < static_cast<std::int64_t>(ranks_that_came) &&
         !patience.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

const char* name_of(BackendChoice choice) {
  switch (choice) {
    case BackendChoice::kGloo: return "gloo";
    case BackendChoice::kHosts: return "hosts";
    default: return "shm";
  }
}

// Rank 0 chooses, by its own options, and tells the others: a backend, or the number of an
// ErrorCode and a text.
BackendChoice agree(const Store& store, const LaunchEnvironment& env, const CommOptions& options,
                    Deadline deadline) {
  store.set(host_key(env.rank), to_text(this_host(options)));
  if (env.rank == 0) {
    std::vector<Host> hosts;
    try {
      collect_hosts(store, env, deadline, hosts);
      const BackendChoice choice = choose_backend(options.backend, hosts);
      store.set("verdict", name_of(choice));
      return choice;
    } catch (const Error& error) {
      tell(store, error, hosts.size());
      throw;
    }
  }
  // Rank 0 may have begun a little later, and its verdict says more than a timeout of this wait.
  const std::string verdict = store.get("verdict", deadline.remaining() + kVerdictGrace);
  for (const auto choice : {BackendChoice::kShm, BackendChoice::kHosts, BackendChoice::kGloo}) {
    if (verdict == name_of(choice)) return choice;
  }
  store.add("heard", 1);
  const auto code = verdict.find(' ') + 1;
  const auto text = verdict.find(' ', code) + 1;
  throw Error(static_cast<ErrorCode>(std::stoi(verdict.substr(code, text - code))),
              verdict.substr(text));
}

World make_world(BackendChoice choice, const LaunchEnvironment& env, const Store& store,
                 const CommOptions& options) {
  switch (choice) {
    case BackendChoice::kGloo: return make_gloo_world(env.rank, env.world_size, store, options);
    case BackendChoice::kHosts: return make_hosts_world(env.rank, env.world_size, store, options);
    default: break;
  }
  c10d::StoreExchange exchange(store);
  return make_shm_world(env.rank, env.world_size, env.local_rank, exchange, options);
}

struct Joined {
  World world;
  Store store;  // that all its ranks see
};

Joined join(const CommOptions& options, const LaunchEnvironment& env) {
  if (env.world_size == 1) return {single_rank(options), Store::in_memory()};
  if (env.rank == 0 && !env.store_fd) base::inform(env.describe());
  const Deadline deadline = Deadline::after(options.timeout);
  Store store = open_store(env, options.timeout);
  World world = make_world(agree(store, env, options, deadline), env, store, options);
  return {std::move(world), std::move(store)};
}

}  // namespace

World init(const CommOptions& options) { return init(options, LaunchEnvironment::read()); }

World init(const CommOptions& options, const LaunchEnvironment& env) {
  return join(options, env).world;
}

GpuWorld init_with_gpus(const CommOptions& options) {
  return init_with_gpus(options, LaunchEnvironment::read());
}

GpuWorld init_with_gpus(const CommOptions& options, const LaunchEnvironment& env) {
  const Joined joined = join(options, env);
  return with_gpus_if_there(joined.world, joined.store.with_prefix("gpus"));
}

World World::init(const CommOptions& options) { return comm::init(options); }

}  // namespace fullshard::comm
