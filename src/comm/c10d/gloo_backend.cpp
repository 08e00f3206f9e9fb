// The only source that sees Gloo's headers. They may be older than the Gloo inside libtorch, so
// nothing of Gloo is called from here: only c10d's own class is constructed.
#define USE_C10D_GLOO 1

#include "comm/c10d/gloo_backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <chrono>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fullshard/base/error.h"
#include "fullshard/base/text.h"
#include "rendezvous/c10d_store.h"

namespace fullshard::comm::c10d {
namespace {

using base::Error;
using base::ErrorCode;
using Gloo = ::c10d::ProcessGroupGloo;

std::string first_line(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

// Gloo waits for a connection five times as long as it is told (Pair::waitUntil in its
// transport/tcp/pair.h), but tries to make one no longer than that, which counts where time is
// short. By then all ranks listen, so a connection that takes long is one to a rank that has died
// since, and nothing ends that wait. Gloo takes no time at all for endless.
std::chrono::milliseconds time_for_gloo(base::Duration timeout) {
  constexpr base::Duration kAtLeast = std::chrono::seconds(1);
  constexpr base::Duration kAtMost = std::chrono::seconds(6);
  return std::chrono::ceil<std::chrono::milliseconds>(std::clamp<base::Duration>(
      std::max(timeout / 5, std::min(timeout, kAtLeast)), std::chrono::milliseconds(1), kAtMost));
}

// Waits until the key is there. In steps, as a wait of the store cannot be ended.
void await(const rendezvous::Store& store, const std::string& key, base::Deadline deadline,
           const Look& look) {
  constexpr base::Duration kLongestPause = std::chrono::milliseconds(100);
  base::Duration pause = std::chrono::milliseconds(1);
  while (!store.has(key)) {
    look();
    if (deadline.passed()) {
      throw Error(ErrorCode::kTimeout, fmt::format("nobody has set '{}' in time", key));
    }
    std::this_thread::sleep_for(std::min(pause, deadline.remaining()));
    pause = std::min(2 * pause, kLongestPause);
  }
}

/// What Gloo meets at: the keys of a store, of which it waits for those of the other ranks.
class MeetingPlace final : public ::c10d::PrefixStore {
 public:
  MeetingPlace(const rendezvous::Store& store, base::Deadline deadline, Look look)
      : PrefixStore("gloo", rendezvous::StoreAccess::c10d_store(store)),
        keys_(store.with_prefix("gloo")),
        deadline_(deadline),
        look_(std::move(look)) {}

  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) await(keys_, key, deadline_, look_);
  }

  /// Until the deadline: the time that Gloo is told is that of a connection.
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  rendezvous::Store keys_;
  base::Deadline deadline_;
  Look look_;
};

// Waits for all ranks, and says which of them listen where. The store may be gone with its rank
// when connecting has failed.
std::string listeners(const rendezvous::Store& store, const std::string& own, int rank,
                      std::span<const int> members, base::Deadline deadline, const Look& look) {
  const auto key_of = [](int of) { return fmt::format("address/{}", of); };
  store.set(key_of(members[static_cast<std::size_t>(rank)]), own);
  std::map<std::string, std::vector<int>> ranks_at;
  for (const int other : members) {
    try {
      await(store, key_of(other), deadline, look);
      ranks_at[store.get(key_of(other), deadline.remaining())].push_back(other);
    } catch (const Error& error) {
      look();
      throw Error(error.code(),
                  fmt::format("connecting {} ranks: rank {} has not come ({})", members.size(),
                              other, error.what()),
                  other);
    }
  }
  std::vector<std::string> places;
  for (const auto& [address, ranks] : ranks_at) {
    places.push_back(fmt::format("{} at {}", base::name_ranks(ranks), address));
  }
  return fmt::format("{}", fmt::join(places, ", "));
}

std::unique_ptr<Link> connect(const std::shared_ptr<::gloo::transport::Device>& device,
                              const std::string& address, const rendezvous::Store& store, int rank,
                              std::span<const int> members, base::Duration timeout,
                              const Look& look) {
  const auto deadline = base::Deadline::after(timeout);
  const std::string places = listeners(store, address, rank, members, deadline, look);
  const NoSigpipeScope no_sigpipe;
  auto options = Gloo::Options::create(time_for_gloo(deadline.remaining()));
  options->devices.push_back(device);
  options->threads = 1;  // for collectives of its own, which are not used
  const auto size = static_cast<int>(members.size());
  try {
    return std::make_unique<Link>(c10::make_intrusive<Gloo>(
        c10::make_intrusive<MeetingPlace>(store, deadline, look), rank, size, std::move(options)));
  } catch (const std::exception& error) {
    look();
    const bool late = deadline.passed();
    const std::string what = late ? fmt::format("connecting {} ranks timed out after {:.3g} s",
                                                size, base::seconds(timeout))
                                  : fmt::format("cannot connect {} ranks", size);
    throw Error(late ? ErrorCode::kTimeout : ErrorCode::kPeerLost,
                fmt::format("{} ({}). They listen: {}. For another network set comm.interface or "
                            "GLOO_SOCKET_IFNAME",
                            what, first_line(error), places));
  }
}

}  // namespace

ConnectRanks gloo_over_tcp(const std::string& address) {
  std::shared_ptr<::gloo::transport::Device> device;
  const NoSigpipeScope no_sigpipe;
  try {
    device = Gloo::createDeviceForHostname(address);
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kConfiguration, fmt::format("Gloo cannot listen at the address {}: {}",
                                                       address, first_line(error)));
  }
  return [device, address](const rendezvous::Store& store, int rank, std::span<const int> members,
                           base::Duration timeout, const Look& look) {
    return connect(device, address, store, rank, members, timeout, look);
  };
}

}  // namespace fullshard::comm::c10d
