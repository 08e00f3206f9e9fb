#pragma once

#include <memory>
#include <vector>

#include "comm/trace/group_trace.h"
#include "fullshard/comm/world.h"

namespace fullshard::comm::local {

/// A group of one rank, which `trace` records.
std::shared_ptr<Group> make_single_group(std::shared_ptr<trace::GroupTrace> trace,
                                         const CommOptions& options);

/// One World for each of `size` ranks that live in this process, in rank order; each is to be used
/// by a thread of its own. Destroying a rank's last copy is that rank's leaving.
std::vector<World> make_local_worlds(int size, const CommOptions& options);

}  // namespace fullshard::comm::local
