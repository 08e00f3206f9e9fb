#include "launcher/watch.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>

namespace fullshard::launcher {
namespace {

void print_error(const std::string& text) { write_fully(STDERR_FILENO, text.data(), text.size()); }

int milliseconds_left(const std::optional<base::Deadline>& deadline) {
  if (!deadline) return -1;
  // Rounded up, so that poll() does not return just before the deadline again and again.
  return static_cast<int>(
      std::chrono::ceil<std::chrono::milliseconds>(deadline->remaining()).count());
}

}  // namespace

Watch::Watch(const LaunchOptions& options, std::vector<Rank>& ranks, SignalScope& signals,
             base::Clock::time_point start)
    : options_(options), ranks_(ranks), signals_(signals), start_(start) {}

int Watch::run() {
  while (any_running()) {
    wait_for_events();
    handle_signals();
    for (Rank& rank : ranks_) handle_rank(rank);
    decide();
  }
  return finish();
}

void Watch::wait_for_events() {
  std::vector<pollfd> polled = {{signals_.fd(), POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    if (!rank.running()) continue;
    polled.push_back({rank.exit_fd(), POLLIN, 0});
    polled.push_back({rank.reports.fd(), POLLIN, 0});  // poll() skips the closed, which are -1
    polled.push_back({rank.errors.fd(), POLLIN, 0});
  }
  ::poll(polled.data(), polled.size(), milliseconds_left(until_));
}

void Watch::handle_signals() {
  for (int signal = signals_.next(); signal != 0; signal = signals_.next()) {
    if (signal == SIGTSTP) {
      suspend();
    } else if (signal == SIGUSR2) {
      signal_all(SIGUSR2);
    } else {
      handle_stop_signal(signal);
    }
  }
}

void Watch::handle_stop_signal(int signal) {
  if (stop_signal_ != 0) return kill_all();
  stop_signal_ = signal;
  stop_all(signal, options_.stop_grace);
}

void Watch::suspend() {
  signal_all(SIGSTOP);
  ::raise(SIGSTOP);  // returns when someone continues this process
  signal_all(SIGCONT);
}

void Watch::handle_rank(Rank& rank) {
  if (!rank.running()) return;
  pollfd exited = {rank.exit_fd(), POLLIN, 0};
  if (::poll(&exited, 1, 0) > 0) return handle_exit(rank);
  rank.reports.read([&](std::string_view line) { read_report(rank.number(), line); });
  rank.errors.read([&](std::string_view line) {
    print_error(fmt::format("[rank {}] {}\n", rank.number(), line));
  });
}

void Watch::handle_exit(Rank& rank) {
  const int status = rank.reap();
  rank.reports.finish([&](std::string_view line) { read_report(rank.number(), line); });
  rank.errors.finish([&](std::string_view line) {
    print_error(fmt::format("[rank {}] {}\n", rank.number(), line));
  });
  // A rank that was told to stop owes no explanation.
  const bool told = phase_ == Phase::kStopping || phase_ == Phase::kKilled;
  std::optional<Failure> failure = failure_of_status(rank.number(), status);
  if (failure && !told) add_failure(std::move(*failure));
}

void Watch::read_report(int rank, std::string_view line) {
  std::optional<Failure> failure = parse_report(rank, line);
  if (failure) add_failure(std::move(*failure));
}

void Watch::add_failure(Failure failure) {
  const bool known = std::ranges::any_of(
      failures_, [&](const Failure& other) { return other.rank == failure.rank; });
  if (!known) failures_.push_back(std::move(failure));
}

void Watch::decide() {
  const bool passed = until_ && until_->passed();
  if (phase_ == Phase::kStopping && passed) return kill_all();
  if (phase_ == Phase::kStopping || phase_ == Phase::kKilled || failures_.empty()) return;
  const bool cause_known = !std::ranges::all_of(failures_, &Failure::consequence);
  if (cause_known || (phase_ == Phase::kWaitingForCause && passed)) {
    return stop_all(SIGTERM, options_.grace);
  }
  if (phase_ == Phase::kWaitingForCause) return;
  phase_ = Phase::kWaitingForCause;
  until_ = base::Deadline::after(options_.cause_wait);
}

void Watch::stop_all(int signal, base::Duration grace) {
  if (phase_ == Phase::kKilled) return;
  signal_all(signal);
  // A rank may be suspended, and could then not hear.
  signal_all(SIGCONT);
  phase_ = Phase::kStopping;
  until_ = base::Deadline::after(grace);
}

void Watch::kill_all() {
  if (phase_ == Phase::kKilled) return;
  for (const Rank& rank : ranks_) {
    if (rank.running())
      killed_ += fmt::format("fullshard: rank {} had to be killed\n", rank.number());
  }
  signal_all(SIGKILL);
  phase_ = Phase::kKilled;
  until_.reset();
}

void Watch::signal_all(int signal) {
  for (const Rank& rank : ranks_) rank.signal(signal);
}

bool Watch::any_running() const { return std::ranges::any_of(ranks_, &Rank::running); }

int Watch::finish() {
  order_by_cause(failures_);
  if (stop_signal_ != 0) {
    // Ranks that stop at different moments lose one another; only causes of their own matter.
    std::erase_if(failures_, &Failure::consequence);
    print_error(summary(failures_, start_) + killed_);
    print_error(fmt::format("fullshard: stopped by SIG{}\n", sigabbrev_np(stop_signal_)));
    return 128 + (stop_signal_ == SIGINT ? SIGINT : SIGTERM);
  }
  print_error(summary(failures_, start_) + killed_);
  if (failures_.empty()) return 0;
  return failures_.front().usage ? 2 : 1;
}

}  // namespace fullshard::launcher
