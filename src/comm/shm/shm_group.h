#pragma once

#include <memory>

#include "comm/trace/group_trace.h"
#include "fullshard/comm/exchange.h"
#include "fullshard/comm/group.h"

namespace fullshard::comm::shm {

/// A group of ranks of this host, which `trace` lists, this one as rank `rank`. Collective, with an
/// exchange that reaches the same keys; errors as of make_shm_world().
std::shared_ptr<Group> make_shm_group(int rank, std::shared_ptr<trace::GroupTrace> trace,
                                      Exchange& exchange, const CommOptions& options);

}  // namespace fullshard::comm::shm
