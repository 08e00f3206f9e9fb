#pragma once

#include "fullshard/comm/c10d/gpus.h"
#include "fullshard/comm/world.h"
#include "fullshard/rendezvous/launch_environment.h"

namespace fullshard::comm {

/// Joins the world that this process was launched into, as the environment says
/// (rendezvous::LaunchEnvironment); a process by itself gets a world of one. Every rank of the job
/// calls it, and as often as the others: each time a new world is made, whatever became of those
/// before, as long as the process lives that serves the job's store, which is rank 0's unless the
/// launcher has one. Returns when all have joined. Ranks of one host share memory, ranks on several
/// hosts are connected through Gloo; rank 0's options.backend may say otherwise. Rank 0
/// logs where its place was found, unless our own launcher put it there.
///
/// Throws base::Error: kConfiguration for environment variables that are wrong; kSystem naming the
/// port when rank 0 cannot serve it; kTimeout naming the ranks that have not come within
/// options.timeout; kConfiguration when shared memory was asked for and the ranks are on several
/// hosts, saying which rank is where; and what make_shm_world() and make_gloo_world() throw.
World init(const CommOptions& options = {});

/// The same for a place in the job that is known already.
World init(const CommOptions& options, const rendezvous::LaunchEnvironment& env);

/// init(), and where GPUs are there with_gpus(), which loads the GPU plugin; where no rank sees a
/// GPU the world is init()'s. Throws what init() and with_gpus_if_there() throw.
GpuWorld init_with_gpus(const CommOptions& options = {});
GpuWorld init_with_gpus(const CommOptions& options, const rendezvous::LaunchEnvironment& env);

}  // namespace fullshard::comm
