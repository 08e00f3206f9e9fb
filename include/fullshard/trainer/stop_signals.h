#pragma once

#include <csignal>
#include <utility>
#include <vector>

namespace fullshard::trainer {

/// While it lives, the first SIGINT, SIGTERM or SIGHUP is noted instead of ending the process; a
/// second one of the same kind ends it as usual. A signal that the process ignores stays ignored.
/// At most one object at a time in a process, since signals belong to the process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Number of the signal that came, 0 for none. Any thread.
  int received() const;

 private:
  std::vector<std::pair<int, struct sigaction>> before_;
};

/// Exit code that says which signal ended a run: 130 for SIGINT, 143 for the others.
int exit_code_of(int signal);

}  // namespace fullshard::trainer
