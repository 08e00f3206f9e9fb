#include "comm/pulse_watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

namespace fullshard::comm {
namespace {

using base::Clock;
using base::Duration;

// Signs of life for a long timeout need not come more often.
constexpr Duration kLongestPause = std::chrono::seconds(3);

}  // namespace

/// When each rank was last heard of.
class PulseWatch::Silences {
 public:
  using Beats = shared::Pulse::Beats;

  explicit Silences(Duration timeout) : timeout_(timeout) {}

  /// The rank that has been silent for longer than the timeout, for longest, and for how long.
  std::optional<std::pair<int, Duration>> update(const std::vector<Beats>& all) {
    const auto now = Clock::now();
    // Whoever stood still itself, with its job or its machine, could have heard nobody.
    const bool was_deaf = now - std::exchange(last_update_, now) > timeout_ / 2;
    std::map<int, Heard> heard;
    std::optional<std::pair<int, Duration>> longest;
    for (const Beats& beats : all) {
      const auto before = heard_.find(beats.rank);
      const bool is_news =
          was_deaf || before == heard_.end() || before->second.count != beats.count;
      const auto at = is_news ? now : before->second.at;
      heard[beats.rank] = {beats.count, at};
      if (now - at > timeout_ && (!longest || now - at > longest->second)) {
        longest = {beats.rank, now - at};
      }
    }
    heard_ = std::move(heard);
    return longest;
  }

 private:
  struct Heard {
    std::uint64_t count = 0;
    Clock::time_point at;
  };

  Duration timeout_;
  Clock::time_point last_update_ = Clock::now();
  std::map<int, Heard> heard_;  // by rank
};

PulseWatch::PulseWatch(int rank, shared::Pulse& pulse, Duration timeout,
                       std::function<std::optional<base::Error>()> find_failure,
                       std::function<void(const base::Error&)> report)
    : rank_(rank),
      pulse_(pulse),
      timeout_(timeout),
      find_failure_(std::move(find_failure)),
      report_(std::move(report)),
      process_(getpid()),
      sleeper_(std::make_unique<Sleeper>()) {
  sleeper_->thread = std::thread([this] { run(); });
}

PulseWatch::~PulseWatch() {
  if (getpid() != process_) {
    // To destroy what another process's thread sleeps on would wait for that thread.
    [[maybe_unused]] auto* const left = sleeper_.release();
    return;
  }
  {
    const std::lock_guard lock(sleeper_->mutex);
    sleeper_->stopping = true;
  }
  sleeper_->changed.notify_all();
  sleeper_->thread.join();
  pulse_.rest();
}

bool PulseWatch::stopping_after(Duration pause) {
  std::unique_lock lock(sleeper_->mutex);
  return sleeper_->changed.wait_for(lock, pause, [this] { return sleeper_->stopping; });
}

std::optional<base::Error> PulseWatch::find_trouble(Silences& silences) {
  if (auto failure = find_failure_()) return failure;
  if (timeout_ <= Duration::zero()) return std::nullopt;
  const auto silent = silences.update(pulse_.beats());
  if (!silent) return std::nullopt;
  const auto [rank, silence] = *silent;
  return base::Error(
      base::ErrorCode::kPeerLost,
      fmt::format("rank {}: rank {} is lost: it has shown no sign of life for {:.3g} s: {}", rank_,
                  rank, base::seconds(silence), pulse_.account_of(rank)),
      rank);
}

void PulseWatch::run() {
  Silences silences(timeout_);
  const Duration pause =
      timeout_ <= Duration::zero() ? kLongestPause : std::min(timeout_ / 10, kLongestPause);
  do {
    try {
      pulse_.beat();
      if (const auto failure = find_trouble(silences)) return report_(*failure);
    } catch (const std::exception&) {
      // There is no memory to look with; perhaps next time.
    }
  } while (!stopping_after(pause));
}

}  // namespace fullshard::comm
