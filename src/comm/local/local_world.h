#pragma once

#include <vector>

#include "fullshard/comm/world.h"

namespace fullshard::comm::local {

/// One World for each of `size` ranks that live in this process, in rank order; each is to be used
/// by a thread of its own. Destroying a rank's last copy is that rank's leaving.
std::vector<World> make_local_worlds(int size, const CommOptions& options);

}  // namespace fullshard::comm::local
