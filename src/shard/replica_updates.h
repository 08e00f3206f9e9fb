#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "fullshard/comm/group.h"
#include "fullshard/comm/mesh.h"
#include "fullshard/comm/work.h"
#include "shard/buffer_pool.h"
#include "shard/flat_unit.h"
#include "shard/reduce_bucket.h"

namespace fullshard::shard {

/// What gather_updates has done.
struct UpdateGathers {
  std::int64_t units = 0;
  std::int64_t bytes = 0;  ///< received
};

/// Of units whose updates replicas divide: brings what the other replicas have updated to what this
/// rank holds. Collective over the replicate group. Adds to `counts`.
void gather_updates(comm::Group& replicate, std::vector<FlatUnit>& units, int shard_rank,
                    std::int64_t version, UpdateGathers& counts);

/// Begins the mean over the replicas of `part`, what this rank holds of a bucket's units, packed
/// replica after replica: in place, or, where replicas divide the updates, of what this rank
/// updates into `own`, which comes from `buffers`. Collective over the replicate group.
comm::Work start_mean(const comm::Mesh& mesh, const std::vector<FlatUnit>& units,
                      const Bucket& bucket, const at::Tensor& part, at::Tensor& own,
                      BufferPool& buffers, std::int64_t round);

/// Elements that each replica updates of what a rank of the shard group holds of a bucket's units.
std::vector<std::int64_t> counts_of_replicas(const std::vector<FlatUnit>& units,
                                             const Bucket& bucket, int shard_rank);

/// Bytes that this rank receives for the mean over the replicas of what it updates of a unit.
std::int64_t bytes_of_mean(const comm::Group& replicate, const FlatUnit& unit);

}  // namespace fullshard::shard
