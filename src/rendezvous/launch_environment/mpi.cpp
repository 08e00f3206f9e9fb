#include "rendezvous/launch_environment/mpi.h"

namespace fullshard::rendezvous {
namespace {

struct Names {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

constexpr Names kOpenMpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kMpich = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

}  // namespace

Findings from_mpi(const Variables& variables) {
  Findings found;
  const Names& names = variables.text(kOpenMpi.rank) ? kOpenMpi : kMpich;
  const FoundInt rank = variables.rank(names.rank);
  const FoundInt size = variables.size(names.world_size);
  if (!rank || !size || size->value == 1) return found;
  found.rank = rank;
  found.world_size = size;
  found.local_rank = variables.rank(names.local_rank);
  found.local_world_size = variables.size(names.local_world_size);
  // MPI tells no rank where rank 0 is; that is known only when all are on one host.
  if (found.local_world_size && found.local_world_size->value == size->value) {
    found.master_addr = {"127.0.0.1", names.local_world_size};
  }
  const FoundText job = variables.first_text({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  found.master_port =
      job ? Found<int>{port_of_job(job->value), job->from} : Found<int>{kUsualPort, "default"};
  return found;
}

}  // namespace fullshard::rendezvous
