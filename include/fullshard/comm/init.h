#pragma once

#include "fullshard/comm/world.h"

namespace fullshard::comm {

/// Joins the world that this process was launched into, as the environment says
/// (rendezvous::LaunchEnvironment); a process by itself gets a world of one. Every rank of the job
/// calls it, once; returns when all have joined.
///
/// Throws base::Error: kConfiguration for environment variables that are wrong; kSystem naming the
/// port when rank 0 cannot serve it; kTimeout naming the ranks that have not come within
/// options.timeout; kConfiguration when the ranks are on several hosts, which this build's backends
/// cannot reach, saying which rank is where; and what make_shm_world() throws.
World init(const CommOptions& options = {});

}  // namespace fullshard::comm
