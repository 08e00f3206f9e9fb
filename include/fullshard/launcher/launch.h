#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fullshard/base/deadline.h"

namespace fullshard::launcher {

/// Environment variable in which rank 0 finds the listening socket of MASTER_PORT.
inline constexpr const char* kStoreFdVariable = "FULLSHARD_STORE_FD";

/// How to start the ranks of one job on this host.
struct LaunchOptions {
  int nproc = 1;                     ///< ranks
  std::vector<std::string> command;  ///< program and arguments; a bare name is looked up in PATH
  std::uint16_t port = 0;            ///< of MASTER_PORT on 127.0.0.1; 0 = any free one
  int threads_per_rank = 0;          ///< OMP_NUM_THREADS unless it is set; 0 = leave it alone
  std::vector<std::pair<std::string, std::string>> environment = {};  ///< further variables

  /// Time that ranks get between SIGTERM and SIGKILL when one of them has failed.
  base::Duration grace = std::chrono::seconds(5);
  /// Time that ranks get to finish what they must when the user stops the job; a second signal ends
  /// it at once.
  base::Duration stop_grace = std::chrono::seconds(30);
  /// Longest wait for the cause to be told when the first to fail only lost another rank. The whole
  /// end of a failed job takes at most `cause_wait` + `grace`.
  base::Duration cause_wait = std::chrono::seconds(2);
};

/// Starts the ranks, watches them to their end, and returns the job's exit code: 0 when every rank
/// ended with 0; 2 when the first cause of failure was a usage error; 130 after SIGINT and 143
/// after SIGTERM or SIGHUP; 1 otherwise.
///
/// Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
/// base::kErrorFdVariable, and rank 0 kStoreFdVariable. Rank 0 writes to this process's stdout and
/// stderr as they are; of the others stdout is dropped and stderr shown with a prefix. Standard
/// input is empty. A rank that fails ends all: they get SIGTERM, after `grace` SIGKILL;
/// then stderr gets the first cause, before what followed from it. SIGINT, SIGTERM and SIGHUP are
/// passed on once, in place of the terminal, since every rank leads its own process group; a second
/// one kills. Those that the caller ignores, as it does SIGHUP under nohup and SIGINT in the
/// background of a script, change nothing. SIGUSR2 is passed on each time; ranks start with it
/// ignored. No process of a rank's group outlives the call, nor this process when that is killed.
///
/// Throws base::Error when the job cannot be started: kInvalidArgument, or kSystem naming the port
/// or the program. Call from the main thread of a process without other threads: SIGINT, SIGTERM,
/// SIGHUP, SIGTSTP and SIGUSR2 are blocked during the call, and ranks die with the calling thread.
int launch(const LaunchOptions& options);

}  // namespace fullshard::launcher
