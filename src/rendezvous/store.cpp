#include "fullshard/rendezvous/store.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "fullshard/base/error.h"
#include "rendezvous/c10d_store.h"

namespace fullshard::rendezvous {

struct Store::State {
  c10::intrusive_ptr<c10d::Store> store;
  std::string name;
  base::Duration timeout = std::chrono::minutes(5);  // of requests that name none
  std::string host;
  int port = 0;
};

namespace {

using base::Error;
using base::ErrorCode;

// c10d adds times to the time of day, so endless will not do, and takes no time at all for endless.
std::chrono::milliseconds in_milliseconds(base::Duration duration) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::clamp<base::Duration>(
      duration, std::chrono::milliseconds(1), std::chrono::hours(24 * 365)));
}

// The first line of c10's message: the others are a stack.
std::string reason_of(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

// Runs a request and turns what c10d throws into errors that name the store and the key. A wait
// that ran out of time has another type in every kind of store, one that it shares with other
// faults; the clock tells them apart.
template <typename Request>
auto attempt(std::string_view store, std::string_view what, base::Duration timeout,
             const Request& request) {
  const auto deadline = base::Deadline::after(timeout);
  const std::string call = fmt::format("{}: {}", store, what);
  try {
    return request();
  } catch (const std::exception& error) {
    if (deadline.passed() || dynamic_cast<const c10d::TimeoutError*>(&error) != nullptr) {
      throw Error(ErrorCode::kTimeout,
                  fmt::format("{} timed out after {:.3g} s", call, base::seconds(timeout)));
    }
    if (dynamic_cast<const c10::DistNetworkError*>(&error) != nullptr) {
      throw Error(
          ErrorCode::kPeerLost,
          fmt::format("{}: the connection is lost; has the process that runs the store ended? ({})",
                      call, reason_of(error)));
    }
    throw Error(ErrorCode::kSystem, fmt::format("{}: {}", call, reason_of(error)));
  }
}

Error not_started(const TcpStoreOptions& options, const std::string& name,
                  const std::exception& error) {
  if (options.serve) {
    return {
        ErrorCode::kSystem,
        fmt::format("cannot start {}: {}; if another job uses the port, choose another MASTER_PORT",
                    name, reason_of(error))};
  }
  return {
      ErrorCode::kTimeout,
      fmt::format("cannot reach {} within {:.3g} s: {}; is rank 0 running, and are MASTER_ADDR and "
                  "MASTER_PORT right?",
                  name, base::seconds(options.timeout), reason_of(error))};
}

// The server closes what it is given.
int duplicate(int listen_fd, const std::string& store) {
  const int fd = fcntl(listen_fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) {
    throw Error(ErrorCode::kSystem, fmt::format("cannot start {} on the inherited socket {}: {}",
                                                store, listen_fd, std::strerror(errno)));
  }
  return fd;
}

}  // namespace

Store::Store(std::shared_ptr<State> state) : state_(std::move(state)) {}

Store Store::over_tcp(const TcpStoreOptions& options) {
  c10d::TCPStoreOptions c10d_options;
  c10d_options.port = static_cast<std::uint16_t>(options.port);
  c10d_options.isServer = options.serve;
  c10d_options.waitWorkers = false;
  c10d_options.timeout = in_milliseconds(options.timeout);
  auto state = std::make_shared<State>();
  state->timeout = options.timeout;
  state->name = fmt::format("the store at {}:{}", options.host, options.port);
  try {
    if (options.serve && options.listen_fd) {
      c10d_options.masterListenFd = duplicate(*options.listen_fd, state->name);
    }
    auto store = c10::make_intrusive<c10d::TCPStore>(options.host, c10d_options);
    state->host = options.host;
    state->port = store->getPort();
    state->name = fmt::format("the store at {}:{}", options.host, state->port);
    state->store = std::move(store);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw not_started(options, state->name, error);
  }
  return Store(std::move(state));
}

Store Store::over_file(const std::string& path, int ranks) {
  auto state = std::make_shared<State>();
  state->name = fmt::format("the store in file '{}'", path);
  state->store = attempt(state->name, "opening", state->timeout, [&] {
    return c10::intrusive_ptr<c10d::Store>(c10::make_intrusive<c10d::FileStore>(path, ranks));
  });
  return Store(std::move(state));
}

Store Store::in_memory() {
  auto state = std::make_shared<State>();
  state->name = "the store in memory";
  state->store = c10::make_intrusive<c10d::HashStore>();
  return Store(std::move(state));
}

Store Store::with_prefix(const std::string& prefix) const {
  Store store(state_);
  store.prefix_ = prefix_ + prefix + "/";
  return store;
}

void Store::set(const std::string& key, const std::string& value) const {
  attempt(state_->name, fmt::format("setting '{}'", prefix_ + key), state_->timeout, [&] {
    state_->store->set(prefix_ + key, std::vector<std::uint8_t>(value.begin(), value.end()));
  });
}

std::string Store::get(const std::string& key, base::Duration timeout) const {
  wait(key, timeout);
  return attempt(state_->name, fmt::format("getting '{}'", prefix_ + key), state_->timeout, [&] {
    const std::vector<std::uint8_t> bytes = state_->store->get(prefix_ + key);
    return std::string(bytes.begin(), bytes.end());
  });
}

bool Store::has(const std::string& key) const {
  return attempt(state_->name, fmt::format("looking for '{}'", prefix_ + key), state_->timeout,
                 [&] { return state_->store->check({prefix_ + key}); });
}

std::int64_t Store::add(const std::string& key, std::int64_t amount) const {
  return attempt(state_->name, fmt::format("adding to '{}'", prefix_ + key), state_->timeout,
                 [&] { return state_->store->add(prefix_ + key, amount); });
}

void Store::wait(const std::string& key, base::Duration timeout) const {
  attempt(state_->name, fmt::format("waiting for '{}'", prefix_ + key), timeout,
          [&] { state_->store->wait({prefix_ + key}, in_milliseconds(timeout)); });
}

int Store::port() const { return state_->port; }

const std::string& Store::host() const { return state_->host; }

c10::intrusive_ptr<c10d::Store> StoreAccess::c10d_store(const Store& store) {
  // Both kinds of prefix end in a slash; this one adds its own.
  if (store.prefix_.empty()) return store.state_->store;
  const std::string prefix = store.prefix_.substr(0, store.prefix_.size() - 1);
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store.state_->store);
}

}  // namespace fullshard::rendezvous
