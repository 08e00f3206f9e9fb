#pragma once

#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "fullshard/launcher/launch.h"
#include "launcher/failure.h"
#include "launcher/rank.h"
#include "launcher/signals.h"

namespace fullshard::launcher {

/// Watches started ranks to their end. One thread, asleep in poll() until something happens.
class Watch {
 public:
  /// Of a job that began at `start`. What is passed by reference must outlive the watch.
  Watch(const LaunchOptions& options, std::vector<Rank>& ranks, SignalScope& signals,
        base::Clock::time_point start);

  /// Returns the job's exit code once every rank has been reaped.
  int run();

 private:
  enum class Phase {
    kRunning,
    kWaitingForCause,  ///< a rank lost another one; which has not yet said why it failed
    kStopping,         ///< everyone was asked to stop; until_ is when they are killed
    kKilled,
  };

  void wait_for_events();
  void handle_signals();
  void handle_stop_signal(int signal);
  void suspend();
  void handle_rank(Rank& rank);
  void handle_exit(Rank& rank);
  void read_report(int rank, std::string_view line);
  void add_failure(Failure failure);

  /// Moves on to the next phase when failures or the clock call for it.
  void decide();
  void stop_all(int signal, base::Duration grace);
  void kill_all();
  void signal_all(int signal);

  bool any_running() const;
  int finish();

  const LaunchOptions& options_;
  std::vector<Rank>& ranks_;
  SignalScope& signals_;
  const base::Clock::time_point start_;
  Phase phase_ = Phase::kRunning;
  std::optional<base::Deadline> until_;  ///< when the phase ends by itself
  int stop_signal_ = 0;                  ///< by which the user ended the job
  std::vector<Failure> failures_;
  std::string killed_;  ///< says which ranks did not end by themselves
};

}  // namespace fullshard::launcher
