#pragma once

#include <memory>
#include <vector>

#include "fullshard/comm/world.h"

namespace fullshard::comm::local {

/// A group of the world's rank `rank` alone.
std::shared_ptr<Group> make_single_group(int rank, const CommOptions& options);

/// One World for each of `size` ranks that live in this process, in rank order; each is to be used
/// by a thread of its own. Destroying a rank's last copy is that rank's leaving.
std::vector<World> make_local_worlds(int size, const CommOptions& options);

}  // namespace fullshard::comm::local
