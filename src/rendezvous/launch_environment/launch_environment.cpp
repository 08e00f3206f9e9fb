#include "fullshard/rendezvous/launch_environment.h"

#include <fmt/format.h>

#include <climits>
#include <cstdlib>
#include <string_view>

#include "fullshard/base/error.h"
#include "rendezvous/launch_environment/mpi.h"
#include "rendezvous/launch_environment/slurm.h"
#include "rendezvous/launch_environment/variables.h"

namespace fullshard::rendezvous {
namespace {

using base::Error;
using base::ErrorCode;

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kConfiguration, message);
}

[[noreturn]] void incomplete(std::string_view set, std::string_view missing) {
  fail(
      fmt::format("{} is set but {} is not; a launched rank needs RANK, WORLD_SIZE, LOCAL_RANK, "
                  "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT (torchrun and 'fullshard train' "
                  "set them all; srun and mpirun what they know, and the rest can be given as "
                  "environment variables), a process by itself none of them",
                  set, missing));
}

template <typename T>
std::optional<Found<T>> from_flag(const std::optional<T>& value, const char* name) {
  if (!value) return std::nullopt;
  return Found<T>{*value, name};
}

Findings from_flags(const LaunchFlags& flags) {
  return {from_flag(flags.rank, "--job.rank"),
          from_flag(flags.world_size, "--job.world_size"),
          from_flag(flags.local_rank, "--job.local_rank"),
          from_flag(flags.local_world_size, "--job.local_world_size"),
          from_flag(flags.master_addr, "--job.master_addr"),
          from_flag(flags.master_port, "--job.master_port")};
}

Findings from_torch(const Variables& variables) {
  return {variables.rank("RANK"),
          variables.size("WORLD_SIZE"),
          variables.rank("LOCAL_RANK"),
          variables.size("LOCAL_WORLD_SIZE"),
          variables.text("MASTER_ADDR"),
          variables.number("MASTER_PORT", 1, 65535, "a TCP port from 1 to 65535")};
}

bool are_different(const Findings& a, const Findings& b) {
  return a.rank->value != b.rank->value || a.world_size->value != b.world_size->value;
}

// Slurm before MPI, but for an mpirun that was started inside a step of Slurm: its ranks inherit
// the variables of the step, which number something else.
Findings from_batch_systems(const Variables& variables) {
  Findings slurm = from_slurm(variables);
  Findings mpi = from_mpi(variables);
  if (!slurm.rank) return mpi;
  return mpi.rank && are_different(slurm, mpi) ? mpi : slurm;
}

// Fills what `found` lacks. The numbers on a host go with the rank: those of another launcher than
// the one that gave it would number something else.
void complete(Findings& found, const Findings& next, bool with_local_numbers) {
  if (!found.rank) found.rank = next.rank;
  if (!found.world_size) found.world_size = next.world_size;
  if (!found.master_addr) found.master_addr = next.master_addr;
  if (!found.master_port) found.master_port = next.master_port;
  if (!with_local_numbers) return;
  if (!found.local_rank) found.local_rank = next.local_rank;
  if (!found.local_world_size) found.local_world_size = next.local_world_size;
}

void require_ranks(const Findings& found) {
  if (!found.rank && found.world_size) incomplete(found.world_size->from, "RANK");
  if (found.rank && !found.world_size) incomplete(found.rank->from, "WORLD_SIZE");
  if (!found.rank && found.local_rank) incomplete(found.local_rank->from, "RANK");
  if (!found.rank && found.local_world_size) incomplete(found.local_world_size->from, "RANK");
  if (found.rank && found.rank->value >= found.world_size->value) {
    const int size = found.world_size->value;
    fail(fmt::format("{} is {}, but {} is {}; ranks go from 0 to {}", found.rank->from,
                     found.rank->value, found.world_size->from, size, size - 1));
  }
}

void require_local_ranks(const Findings& found) {
  if (found.local_rank && !found.local_world_size) {
    incomplete(found.local_rank->from, "LOCAL_WORLD_SIZE");
  }
  if (found.local_world_size && !found.local_rank) {
    incomplete(found.local_world_size->from, "LOCAL_RANK");
  }
  if (!found.local_rank) return;
  const Found<int>& rank = *found.local_rank;
  const Found<int>& size = *found.local_world_size;
  const Found<int>& world = *found.world_size;
  if (rank.value < size.value && size.value <= world.value) return;
  fail(
      fmt::format("{}={} and {}={} do not fit; a rank's number on its host is below the number of "
                  "ranks there, and that is at most {}={}",
                  rank.from, rank.value, size.from, size.value, world.from, world.value));
}

void require_store(const Findings& found) {
  if (found.world_size->value == 1) return;
  if (!found.master_addr || found.master_addr->value.empty()) {
    incomplete(found.world_size->from, "MASTER_ADDR");
  }
  if (!found.master_port) incomplete(found.world_size->from, "MASTER_PORT");
}

template <typename T>
void take(LaunchEnvironment& env, T& field, const char* name,
          const std::optional<Found<T>>& found) {
  if (!found) return;
  field = found->value;
  env.sources.push_back({name, fmt::format("{}", found->value), found->from});
}

LaunchEnvironment placed(const Findings& found) {
  LaunchEnvironment env;
  env.launched = true;
  take(env, env.rank, "rank", found.rank);
  take(env, env.world_size, "world size", found.world_size);
  env.local_rank = env.rank;
  env.local_world_size = env.world_size;
  take(env, env.local_rank, "local rank", found.local_rank);
  take(env, env.local_world_size, "local world size", found.local_world_size);
  take(env, env.master_addr, "master address", found.master_addr);
  take(env, env.master_port, "master port", found.master_port);
  return env;
}

}  // namespace

LaunchEnvironment LaunchEnvironment::read(const Lookup& lookup, const LaunchFlags& flags) {
  const Variables variables(lookup);
  Findings found = from_flags(flags);
  complete(found, from_torch(variables), true);
  complete(found, from_batch_systems(variables), !found.rank);
  require_ranks(found);
  if (!found.rank) return {};
  require_local_ranks(found);
  require_store(found);
  LaunchEnvironment env = placed(found);
  const FoundInt fd =
      variables.number("FULLSHARD_STORE_FD", 0, INT_MAX, "the number of an open socket");
  if (fd && env.rank == 0) env.store_fd = fd->value;
  const FoundText hosted = variables.text("TORCHELASTIC_USE_AGENT_STORE");
  env.store_is_hosted = hosted && hosted->value == "True";
  const FoundInt restart =
      variables.number("TORCHELASTIC_RESTART_COUNT", 0, INT_MAX, "a count from 0 up");
  if (restart) env.restart = restart->value;
  return env;
}

LaunchEnvironment LaunchEnvironment::read(const LaunchFlags& flags) {
  return read([](const char* name) { return static_cast<const char*>(std::getenv(name)); }, flags);
}

std::string LaunchEnvironment::describe() const {
  std::string text;
  for (const Source& source : sources) {
    text += fmt::format("{}{} {} ({})", text.empty() ? "" : ", ", source.field, source.value,
                        source.from);
  }
  if (store_is_hosted) text += ", store of the agent (TORCHELASTIC_USE_AGENT_STORE)";
  return text.empty() ? "a process by itself" : text;
}

}  // namespace fullshard::rendezvous
