#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fullshard::rendezvous {

/// What the user says about the job, before any variable is asked; unset fields are looked for.
struct LaunchFlags {
  std::optional<int> rank;
  std::optional<int> world_size;
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
};

/// Where this process is in its job. Each field is the first that is given by: flags; torch's
/// variables, which torchrun, Kubernetes' operators and `fullshard train` set; Slurm's; those of
/// Open MPI or MPICH. Without a rank from any of them it is a process by itself. Read once, at
/// start, by whoever builds a World; passed on as a value.
///
/// Slurm's variables count where srun started more than one task; in a batch script outside srun
/// they describe the allocation and are left alone. Where mpirun started the ranks inside a step
/// of Slurm, the two differ, and MPI's count. docs/communication.md lists every variable.
struct LaunchEnvironment {
  /// Where a field's value comes from: a variable, a flag, or in words.
  struct Source {
    std::string field;
    std::string value;
    std::string from;
  };

  bool launched = false;     ///< something started this process as one of the job's ranks
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

  std::vector<Source> sources;  ///< of the fields from rank to master_port; empty when not launched

  /// One line that says what was found and where, for a log.
  std::string describe() const;

  /// Returns the variable's value, or null when it is not set.
  using Lookup = std::function<const char*(const char* name)>;

  /// Reads and checks all of them; nothing set is a process by itself. Throws base::Error
  /// kConfiguration naming the variable, its value and what would be right.
  static LaunchEnvironment read(const Lookup& lookup, const LaunchFlags& flags = {});

  /// From this process's environment.
  static LaunchEnvironment read(const LaunchFlags& flags = {});
};

}  // namespace fullshard::rendezvous
