#pragma once

#include <cstdint>
#include <vector>

#include "fullshard/comm/group.h"
#include "shard/flat_unit.h"

namespace fullshard::shard {

/// Of units whose updates replicas divide: brings what the other replicas have updated to what this
/// rank holds. Collective over the replicate group.
void gather_updates(comm::Group& replicate, std::vector<FlatUnit>& units, int shard_rank,
                    std::int64_t version);

/// Elements that each replica updates of what a rank of the shard group holds.
std::vector<std::int64_t> counts_of_replicas(const FlatUnit& unit, int shard_rank);

/// Bytes that this rank receives for the mean over the replicas of what it updates of a unit.
std::int64_t bytes_of_mean(const comm::Group& replicate, const FlatUnit& unit);

}  // namespace fullshard::shard
