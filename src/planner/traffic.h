#pragma once

#include <cstdint>

#include "fullshard/planner/assessment.h"
#include "planner/units.h"

namespace fullshard::planner {

/// What one unit costs besides computing.
struct UnitCosts {
  std::int64_t bytes = 0;  ///< gathered
  bool is_gathered = true;
  double gather = 0;  ///< seconds that the network is busy with a gather; 0 inside a host
  double adding = 0;  ///< seconds of a rank: gradients added up and copied
  double reduce = 0;  ///< seconds that the network is busy with its reduction
  std::int64_t sent_by_gather = 0;  ///< bytes, by a host
  std::int64_t sent_by_reduce = 0;
};

/// Whether the ranks that share one set of parameters are on several hosts: units are gathered into
/// buffers of each rank's own, and gradients are copied into one before they travel.
bool is_private(const Job& job, Strategy strategy);

/// Whether the replicas of a parameter are on several hosts.
bool is_hybrid(Strategy strategy);

/// With H hosts of R ranks, a unit of E elements, c bytes of an element that is computed with and m
/// of one that is updated. A collective of B bytes between hosts sends B (H - 1) / H from each
/// (comm/c10d/hierarchical: what crosses, crosses once), an all_reduce twice as many; one has a
/// greeting and a message one after the other, an all_reduce a message more.
///
///   adding inside a host      every rank reads its part of R gradients and writes a shard:
///                             E (R c + m) bytes; without sharding each rank all of it
///   gathering between hosts   the network, and each rank's own copy: 2 R E c bytes of memory
///   reducing between hosts    a copy into the unit's buffer in each rank: 2 R E c bytes; then in
///                             the background sums inside the host, (R + 1) E c, and the network
UnitCosts costs_of(const Job& job, const Candidate& candidate, const Unit& unit,
                   const layout::UnitLayout& layout);

/// Seconds after an update in which replicas exchange what they have updated: all `bytes` of a
/// host's parameters in `units` collectives.
double update_exchange_seconds(const Machines& machines, std::int64_t bytes, std::int64_t units);

/// Bytes that a host sends in a collective of `bytes`.
std::int64_t sent_between_hosts(const Machines& machines, std::int64_t bytes);

}  // namespace fullshard::planner
