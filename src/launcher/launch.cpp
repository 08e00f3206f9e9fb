#include "fullshard/launcher/launch.h"

#include <fcntl.h>
#include <fmt/format.h>

#include "fullshard/base/error.h"
#include "launcher/environment.h"
#include "launcher/listener.h"
#include "launcher/rank.h"
#include "launcher/signals.h"
#include "launcher/spawn.h"
#include "launcher/warden.h"
#include "launcher/watch.h"

namespace fullshard::launcher {
namespace {

constexpr int kMostRanks = 1024;
constexpr std::size_t kLongestReport = 1 << 24;

void check(const LaunchOptions& options) {
  if (options.nproc < 1 || options.nproc > kMostRanks) {
    throw base::Error(base::ErrorCode::kInvalidArgument,
                      fmt::format("cannot start {} ranks on one host; from 1 to {} are possible",
                                  options.nproc, kMostRanks));
  }
  if (options.command.empty()) {
    throw base::Error(base::ErrorCode::kInvalidArgument, "no command to start ranks with");
  }
}

class Starter {
 public:
  Starter(const LaunchOptions& options, const Listener& listener, const SignalScope& signals,
          Warden& warden)
      : options_(options),
        listener_(listener),
        signals_(signals),
        warden_(warden),
        null_(::open("/dev/null", O_RDWR | O_CLOEXEC)) {
    if (!null_.open()) fail_errno("open /dev/null");
  }

  Rank start(int number) const {
    const bool first = number == 0;
    Pipe reports = make_pipe(true);
    Pipe errors = first ? Pipe{} : make_pipe(true);
    const RankFds fds{.reports = reports.write.get(), .store = first ? listener_.socket.get() : -1};
    SpawnRequest request{.command = options_.command,
                         .environment = rank_environment(options_, number, listener_.port, fds),
                         .stdin_fd = null_.get(),
                         .stdout_fd = first ? -1 : null_.get(),
                         .stderr_fd = errors.write.get(),
                         .inherited = {fds.reports},
                         .signal_mask = signals_.outer_mask()};
    if (first) request.inherited.push_back(fds.store);
    return Rank(number, spawn(request), LineReader(std::move(reports.read), kLongestReport),
                LineReader(std::move(errors.read)), warden_);
  }

 private:
  const LaunchOptions& options_;
  const Listener& listener_;
  const SignalScope& signals_;
  Warden& warden_;
  Fd null_;
};

}  // namespace

int launch(const LaunchOptions& options) {
  check(options);
  const auto start = base::Clock::now();
  // In this order, so that signals are held back while there are ranks, and the warden is the last
  // to go.
  SignalScope signals;
  Listener listener = listen_on(options.port);
  Warden warden;
  std::vector<Rank> ranks;
  ranks.reserve(static_cast<std::size_t>(options.nproc));
  const Starter starter(options, listener, signals, warden);
  for (int number = 0; number < options.nproc; ++number) ranks.push_back(starter.start(number));
  // Rank 0 alone keeps the port: when it is gone, others are refused at once instead of waiting.
  listener.socket.reset();
  return Watch(options, ranks, signals, start).run();
}

}  // namespace fullshard::launcher
