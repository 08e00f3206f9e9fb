#pragma once

#include "rendezvous/launch_environment/variables.h"

namespace fullshard::rendezvous {

/// What mpirun of Open MPI (OMPI_COMM_WORLD_*) or MPICH (PMI_*) says of this process; nothing in a
/// job of one, which may start ranks of its own. MPI itself is not used.
Findings from_mpi(const Variables& variables);

}  // namespace fullshard::rendezvous
