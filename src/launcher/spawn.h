#pragma once

#include <sys/types.h>

#include <csignal>
#include <span>
#include <string>
#include <vector>

namespace fullshard::launcher {

/// A program to start as the leader of its own process group. Descriptors are borrowed.
struct SpawnRequest {
  std::vector<std::string> command;
  std::vector<std::string> environment;  ///< all of it, as NAME=value
  int stdin_fd = -1;
  int stdout_fd = -1;          ///< -1 = this process's
  int stderr_fd = -1;          ///< -1 = this process's
  std::vector<int> inherited;  ///< descriptors to keep open under their numbers
  sigset_t signal_mask;
};

/// Starts the program and returns once it runs. It gets SIGKILL when the calling thread ends.
/// Throws base::Error(kSystem) naming the program when it cannot be run.
pid_t spawn(const SpawnRequest& request);

}  // namespace fullshard::launcher
