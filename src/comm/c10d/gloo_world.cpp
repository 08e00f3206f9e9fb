#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <utility>
#include <vector>

#include "comm/c10d/address.h"
#include "comm/c10d/c10d_group.h"
#include "comm/c10d/gloo_backend.h"
#include "comm/c10d/store_exchange.h"
#include "comm/host.h"
#include "comm/host_map.h"
#include "comm/local/local_world.h"
#include "comm/shared/arguments.h"
#include "comm/shared/report.h"
#include "comm/shm/shm_group.h"
#include "fullshard/base/error.h"
#include "fullshard/base/log.h"
#include "fullshard/base/text.h"
#include "fullshard/comm/c10d/gloo.h"

namespace fullshard::comm {
namespace {

using base::Error;
using base::ErrorCode;
using rendezvous::Store;

std::string key_of(int rank) { return fmt::format("here/{}", rank); }

/// What a rank says of itself: world size, options that rank 0 decides, and where it runs.
struct Present {
  int size;
  std::size_t staging;
  base::Duration heartbeat_timeout;
  Host host;
};

std::string to_text(const Present& present) {
  return fmt::format("{} {} {} {}", present.size, present.staging,
                     std::chrono::nanoseconds(present.heartbeat_timeout).count(),
                     to_text(present.host));
}

Present present_from_text(const std::string& text) {
  std::istringstream words(text);
  Present present{};
  std::int64_t nanoseconds = 0;
  std::string host;
  words >> present.size >> present.staging >> nanoseconds >> std::ws;
  std::getline(words, host);
  present.heartbeat_timeout = std::chrono::nanoseconds(nanoseconds);
  present.host = host_from_text(host);
  return present;
}

std::vector<int> hosts_of(const std::vector<Present>& all) {
  std::vector<Host> hosts;
  for (const Present& present : all) hosts.push_back(present.host);
  return number_hosts(hosts);
}

// Waits for the others' lines, and checks that all mean the same world.
std::vector<Present> call_the_roll(int rank, int size, const Store& store,
                                   const CommOptions& options) {
  const auto deadline = base::Deadline::after(options.timeout);
  if (store.add(fmt::format("seat/{}", rank), 1) > 1) {
    throw Error(ErrorCode::kMismatch,
                fmt::format("a process joined as rank {}, which has come already", rank));
  }
  store.set(key_of(rank),
            to_text(Present{size, options.staging, options.heartbeat_timeout, this_host(options)}));
  std::vector<Present> all;
  std::vector<int> absent;
  for (int other = 0; other < size; ++other) {
    try {
      all.push_back(present_from_text(store.get(key_of(other), deadline.remaining())));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
      absent.push_back(other);
      continue;
    }
    if (all.back().size != size) {
      throw Error(ErrorCode::kMismatch,
                  fmt::format("rank {} joined a world of {} ranks, rank {} one of {}", other,
                              all.back().size, rank, size));
    }
  }
  if (absent.empty()) return all;
  throw Error(
      ErrorCode::kTimeout,
      fmt::format("joining the world timed out after {:.3g} s: {} of {} ranks came, {} did "
                  "not",
                  base::seconds(options.timeout), all.size(), size, base::name_ranks(absent)),
      absent.front());
}

std::string own_address(const std::vector<Present>& all, const Store& store,
                        const CommOptions& options) {
  const char* environment = std::getenv("GLOO_SOCKET_IFNAME");
  const bool several = std::any_of(all.begin(), all.end(), [&](const Present& present) {
    return present.host.identity != all.front().host.identity;
  });
  const c10d::AddressChoice choice = c10d::choose_address(
      {options.interface, environment == nullptr ? "" : environment, store.host(), several},
      c10d::Network::of_this_host());
  if (!choice.warning.empty()) base::warn(choice.warning);
  return choice.address;
}

// The ranks of this host share memory.
std::shared_ptr<Group> join_host(int rank, const trace::GroupTrace& world,
                                 const std::vector<int>& host_of, const Store& keys,
                                 const CommOptions& options) {
  const HostMap hosts(host_of);
  if (!hosts.any_together()) return nullptr;
  const int here = hosts.host_of(rank);
  const std::vector<int>& members = hosts.ranks(here);
  if (members.size() == 1) return local::make_single_group(world.self(), options);
  c10d::StoreExchange exchange(keys.with_prefix(fmt::format("host{}", here)));
  return shm::make_shm_group(
      hosts.local(rank),
      std::make_shared<trace::GroupTrace>(world.recorder(), fmt::format("host{}", here), members),
      exchange, options);
}

World join(int rank, int size, const Store& store, const CommOptions& options, bool shares_hosts) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("rank {} of {} ranks does not exist", rank, size));
  }
  shared::check_options(options);
  if (size == 1) return single_rank(options);
  const Store own_keys = store.with_prefix("gloo");
  const std::vector<Present> all = call_the_roll(rank, size, own_keys, options);
  CommOptions agreed = options;
  agreed.staging = all.front().staging;
  agreed.heartbeat_timeout = all.front().heartbeat_timeout;
  const auto trace = trace::GroupTrace::of_world(rank, size, options);
  c10d::Placement placement{hosts_of(all), nullptr};
  if (shares_hosts) placement.inside = join_host(rank, *trace, placement.host_of, own_keys, agreed);
  const HostMap hosts(placement.host_of);
  auto group = std::make_shared<c10d::C10dGroup>(
      own_keys.with_prefix("world"), c10d::gloo_over_tcp(own_address(all, store, options)), [] {},
      rank, trace, std::move(placement), agreed);
  return World(std::move(group), local::make_single_group(trace->self(), options),
               trace->recorder(), hosts.local(rank),
               static_cast<int>(hosts.ranks(hosts.host_of(rank)).size()));
}

}  // namespace

World make_gloo_world(int rank, int size, const Store& store, const CommOptions& options) {
  return join(rank, size, store, options, /*shares_hosts=*/false);
}

World make_hosts_world(int rank, int size, const Store& store, const CommOptions& options) {
  return join(rank, size, store, options, /*shares_hosts=*/true);
}

}  // namespace fullshard::comm
