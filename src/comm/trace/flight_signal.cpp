#include "fullshard/comm/flight_signal.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "comm/trace/recorder.h"
#include "fullshard/base/check.h"
#include "fullshard/base/error.h"
#include "fullshard/base/log.h"

namespace fullshard::comm {
namespace {

using base::Error;
using base::ErrorCode;

// A handler can reach nothing but statics. The descriptor is never closed: a handler may be about
// to use it.
std::atomic<int> bell = -1;
std::atomic<bool> in_use = false;
static_assert(std::atomic<int>::is_always_lock_free);

void ring() {
  const std::uint64_t once = 1;
  // It can only fail when the bell has been rung and not yet been heard very many times.
  [[maybe_unused]] const ssize_t written = ::write(bell, &once, sizeof(once));
}

void on_signal(int /*signal*/) {
  const int error = errno;
  ring();
  errno = error;
}

void wait_for_bell() {
  std::uint64_t times = 0;
  while (::read(bell, &times, sizeof(times)) < 0 && errno == EINTR) continue;
}

void make_bell() {
  if (bell >= 0) return;
  bell = ::eventfd(0, EFD_CLOEXEC);
  if (bell >= 0) return;
  throw Error(ErrorCode::kSystem,
              fmt::format("cannot listen for SIGUSR2: eventfd: {}", std::strerror(errno)));
}

// Threads started meanwhile leave all signals to others.
class NoSignalsScope {
 public:
  NoSignalsScope() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~NoSignalsScope() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignalsScope(const NoSignalsScope&) = delete;
  NoSignalsScope& operator=(const NoSignalsScope&) = delete;

 private:
  sigset_t before_{};
};

void write_record(const trace::Recorder& recorder, const std::string& folder) {
  try {
    const std::string file = recorder.write(folder, "SIGUSR2");
    base::inform(fmt::format("flight record of rank {}: {}", recorder.rank(), file));
  } catch (const std::exception& error) {
    base::warn(error.what());
  }
}

}  // namespace

FlightSignal::FlightSignal(std::string folder) : folder_(std::move(folder)), before_{} {
  FULLSHARD_CHECK(!in_use.exchange(true));
  try {
    make_bell();
  } catch (...) {
    in_use = false;
    throw;
  }
  {
    const NoSignalsScope no_signals;
    thread_ = std::thread([this] { run(); });
  }
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, &before_);
}

FlightSignal::~FlightSignal() {
  sigaction(SIGUSR2, &before_, nullptr);
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  ring();
  thread_.join();
  in_use = false;
}

void FlightSignal::watch(const World& world) {
  const std::lock_guard lock(mutex_);
  std::erase_if(recorders_, [](const auto& recorder) { return recorder.expired(); });
  recorders_.push_back(world.recorder_);
}

void FlightSignal::run() {
  while (true) {
    wait_for_bell();
    {
      const std::lock_guard lock(mutex_);
      if (closing_) return;
    }
    write_records();
  }
}

void FlightSignal::write_records() {
  std::vector<std::shared_ptr<const trace::Recorder>> recorders;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& watched : recorders_) {
      if (auto recorder = watched.lock()) recorders.push_back(std::move(recorder));
    }
  }
  if (recorders.empty()) base::inform("SIGUSR2: no rank of this process has joined its job yet");
  for (const auto& recorder : recorders) write_record(*recorder, folder_);
}

}  // namespace fullshard::comm
