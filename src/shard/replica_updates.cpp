#include "shard/replica_updates.h"

#include <algorithm>
#include <cstddef>
#include <functional>

#include "shard/dtype.h"
#include "shard/gradient_reducer.h"

namespace fullshard::shard {
namespace {

std::vector<std::int64_t> counts_of_replicas(const FlatUnit& unit, int shard_rank) {
  std::vector<std::int64_t> counts;
  for (const layout::Range& piece : unit.pieces_of(shard_rank)) counts.push_back(piece.size());
  return counts;
}

}  // namespace

std::vector<std::int64_t> counts_of_replicas(const std::vector<FlatUnit>& units,
                                             const Bucket& bucket, int shard_rank) {
  std::vector<std::int64_t> counts = counts_of_replicas(units[bucket.front().unit], shard_rank);
  for (std::size_t i = 1; i < bucket.size(); ++i) {
    std::ranges::transform(counts, counts_of_replicas(units[bucket[i].unit], shard_rank),
                           counts.begin(), std::plus<>());
  }
  return counts;
}

comm::Work start_mean(const comm::Mesh& mesh, const std::vector<FlatUnit>& units,
                      const Bucket& bucket, const at::Tensor& part, at::Tensor& own,
                      BufferPool& buffers, std::int64_t round) {
  const FlatUnit& first = units[bucket.front().unit];
  const base::DType dtype = to_dtype(first.reduce_dtype(), first.name);
  const comm::OpTag tag{name_of(units, bucket), round};
  const comm::Buffer held{part.mutable_data_ptr(), part.numel() / first.reduce_element_bytes(),
                          dtype};
  if (!first.divided()) {
    return mesh.replicate->all_reduce(held, comm::ReduceOp::kMean, tag);
  }
  const std::vector<std::int64_t> counts = counts_of_replicas(units, bucket, mesh.shard->rank());
  const std::int64_t mine = counts[static_cast<std::size_t>(mesh.replicate->rank())];
  own = buffers.take(mine * first.reduce_element_bytes());
  return mesh.replicate->reduce_scatter(held, {own.mutable_data_ptr(), mine, dtype},
                                        comm::ReduceOp::kMean, counts, tag);
}

std::int64_t bytes_of_mean(const comm::Group& replicate, const FlatUnit& unit) {
  if (!unit.divided()) return all_reduce_bytes(replicate, unit.held_reduce_bytes());
  return (replicate.size() - 1) * unit.own_reduce_bytes();
}

void gather_updates(comm::Group& replicate, std::vector<FlatUnit>& units, int shard_rank,
                    std::int64_t version, UpdateGathers& counts) {
  std::vector<comm::Work> works;
  for (const FlatUnit& unit : units) {
    if (!unit.divided()) continue;
    ++counts.units;
    counts.bytes += unit.held_bytes() - unit.own_bytes();
    // The own part of what it is gathered to.
    works.push_back(
        replicate.all_gather({unit.held_at(unit.own.begin), unit.own.size(), unit.layout.dtype()},
                             {unit.held_memory, unit.held.size(), unit.layout.dtype()},
                             counts_of_replicas(unit, shard_rank), {unit.name, version}));
  }
  for (comm::Work& work : works) work.wait();
}

}  // namespace fullshard::shard
