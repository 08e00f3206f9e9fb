#include "fullshard/rendezvous/launch_environment/flags.h"

namespace fullshard::rendezvous {

LaunchFlags flags_of(const config::JobConfig& job) {
  LaunchFlags flags;
  if (job.rank >= 0) flags.rank = job.rank;
  if (job.world_size > 0) flags.world_size = job.world_size;
  if (job.local_rank >= 0) flags.local_rank = job.local_rank;
  if (job.local_world_size > 0) flags.local_world_size = job.local_world_size;
  if (!job.master_addr.empty()) flags.master_addr = job.master_addr;
  if (job.master_port > 0) flags.master_port = job.master_port;
  return flags;
}

}  // namespace fullshard::rendezvous
