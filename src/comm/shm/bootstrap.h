#pragma once

#include <memory>
#include <vector>

#include "comm/shm/memfd_segment.h"
#include "comm/shm/peer.h"
#include "fullshard/comm/exchange.h"
#include "fullshard/comm/types.h"

namespace fullshard::comm::shm {

/// What a rank holds after all have found each other.
struct Joined {
  std::vector<Peer> peers;  ///< by rank; the own entry too
  UniqueFd inbox;           ///< the own mailbox, to read from
  std::shared_ptr<MemfdSegment> control;
};

/// Brings the ranks together over a UNIX socket in the abstract namespace, which vanishes with rank
/// 0's descriptor. Its name is random and travels through the exchange with a token that a rank has
/// to show, so jobs on one host meet neither each other nor strangers. Errors as of
/// make_shm_world().
Joined join(int rank, int size, Exchange& exchange, const CommOptions& options);

}  // namespace fullshard::comm::shm
