#pragma once

#include "fullshard/comm/exchange.h"
#include "fullshard/comm/types.h"
#include "fullshard/comm/world.h"

namespace fullshard::comm {

/// Joins a world of `size` ranks that are processes of this host (threads work too), as rank
/// `rank`. Every rank calls it, with an exchange that reaches the same keys, at most once an
/// exchange; returns when all ranks have joined, and uses the exchange no longer.
///
/// Memory is anonymous (memfd), reached through descriptors that travel over sockets: nothing has a
/// name in the file system, so nothing stays behind however the ranks end. It counts as shared
/// memory of the processes, not against /dev/shm. A rank that ends without leaving is noticed by
/// the others within about 20 ms of waiting.
///
/// Throws base::Error: kInvalidArgument for a rank that is none; kTimeout naming the ranks that
/// have not come within options.timeout; kPeerLost when a rank dies while joining; kSystem with the
/// call that the system refused.
World make_shm_world(int rank, int size, int local_rank, Exchange& exchange,
                     const CommOptions& options = {});

}  // namespace fullshard::comm
