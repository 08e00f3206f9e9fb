#pragma once

#include <functional>
#include <optional>
#include <string>

namespace fullshard::rendezvous {

/// What the launcher told this process about the job, from the environment variables of torchrun
/// and of `fullshard train`. Read once, at start, by whoever builds a World; passed on as a value.
struct LaunchEnvironment {
  bool launched = false;     ///< RANK and WORLD_SIZE are set; otherwise a process by itself
  int rank = 0;              ///< RANK
  int world_size = 1;        ///< WORLD_SIZE
  int local_rank = 0;        ///< LOCAL_RANK; RANK when unset
  int local_world_size = 1;  ///< LOCAL_WORLD_SIZE; WORLD_SIZE when unset
  std::string master_addr;   ///< MASTER_ADDR: where the store listens; needed by more than one rank
  int master_port = 0;       ///< MASTER_PORT
  /// FULLSHARD_STORE_FD: a socket, already listening on MASTER_PORT, that rank 0 inherits from its
  /// launcher, so that no other job can take the port in between. Rank 0 only.
  std::optional<int> store_fd;
  /// TORCHELASTIC_USE_AGENT_STORE: torchrun runs the store itself, rank 0 must not.
  bool store_is_hosted = false;
  /// TORCHELASTIC_RESTART_COUNT: the store outlives restarts, so keys need it.
  int restart = 0;

  /// Returns the variable's value, or null when it is not set.
  using Lookup = std::function<const char*(const char* name)>;

  /// Reads and checks all of them; nothing set is a process by itself. Throws base::Error
  /// kConfiguration naming the variable, its value and what would be right.
  static LaunchEnvironment read(const Lookup& lookup);

  /// From this process's environment.
  static LaunchEnvironment read();
};

}  // namespace fullshard::rendezvous
