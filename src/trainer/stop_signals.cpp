#include "fullshard/trainer/stop_signals.h"

#include <array>
#include <atomic>

#include "fullshard/base/check.h"

namespace fullshard::trainer {
namespace {

constexpr std::array<int, 3> kStopSignals = {SIGINT, SIGTERM, SIGHUP};

// A handler can reach nothing but statics.
std::atomic<int> received_signal = 0;
std::atomic<bool> in_use = false;
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) { received_signal.store(signal); }

}  // namespace

StopSignals::StopSignals() {
  FULLSHARD_CHECK(!in_use.exchange(true));
  received_signal = 0;
  struct sigaction action {};
  action.sa_handler = note;
  // Reset, so that the second signal ends a run that does not get to its next step.
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (const int signal : kStopSignals) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    sigaction(signal, &action, nullptr);
    before_.emplace_back(signal, before);
  }
}

StopSignals::~StopSignals() {
  for (const auto& [signal, before] : before_) sigaction(signal, &before, nullptr);
  in_use = false;
}

int StopSignals::received() const { return received_signal; }

int exit_code_of(int signal) { return 128 + (signal == SIGINT ? SIGINT : SIGTERM); }

}  // namespace fullshard::trainer
