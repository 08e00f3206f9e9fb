#include "shard/replica_updates.h"

#include "fullshard/comm/work.h"
#include "shard/gradient_reducer.h"

namespace fullshard::shard {

std::vector<std::int64_t> counts_of_replicas(const FlatUnit& unit, int shard_rank) {
  std::vector<std::int64_t> counts;
  for (const layout::Range& piece : unit.pieces_of(shard_rank)) counts.push_back(piece.size());
  return counts;
}

std::int64_t bytes_of_mean(const comm::Group& replicate, const FlatUnit& unit) {
  if (!unit.divided()) return all_reduce_bytes(replicate, unit.held_bytes());
  return (replicate.size() - 1) * unit.own_bytes();
}

void gather_updates(comm::Group& replicate, std::vector<FlatUnit>& units, int shard_rank,
                    std::int64_t version) {
  std::vector<comm::Work> works;
  for (const FlatUnit& unit : units) {
    if (!unit.divided()) continue;
    // The own part of what it is gathered to.
    works.push_back(
        replicate.all_gather({unit.own_at(unit.own.begin), unit.own.size(), unit.layout.dtype()},
                             {unit.held_memory, unit.held.size(), unit.layout.dtype()},
                             counts_of_replicas(unit, shard_rank), {unit.name, version}));
  }
  for (comm::Work& work : works) work.wait();
}

}  // namespace fullshard::shard
