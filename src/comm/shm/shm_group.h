#pragma once

#include <memory>
#include <vector>

#include "fullshard/comm/exchange.h"
#include "fullshard/comm/group.h"

namespace fullshard::comm::shm {

/// A group of ranks of this host, this one as rank `rank`; `members[r]` is the world's number of
/// rank r. Collective, with an exchange that reaches the same keys; errors as of make_shm_world().
std::shared_ptr<Group> make_shm_group(int rank, const std::vector<int>& members, Exchange& exchange,
                                      const CommOptions& options);

}  // namespace fullshard::comm::shm
