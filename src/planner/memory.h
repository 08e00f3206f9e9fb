#pragma once

#include <cstdint>
#include <vector>

#include "fullshard/planner/assessment.h"
#include "planner/timeline.h"
#include "planner/units.h"

namespace fullshard::planner {

/// Elements of flat units, padding included.
struct Elements {
  std::int64_t held = 0;     ///< as operators see them, in this memory
  std::int64_t updated = 0;  ///< whose masters, moments and gradients are here
};

/// Who has how much of all units.
struct Shares {
  Elements rank;             ///< the rank that has most
  Elements host;             ///< the host that has most, all of its ranks
  std::int64_t whole = 0;    ///< elements of the model, padding included
  double largest_share = 1;  ///< most of any rank, in means
};

/// Ranks that form one shard group, and so the world of its layouts.
int shard_ranks(const Machines& machines, Strategy strategy);

/// The heads that go together where a candidate keeps them whole.
HeadProposal heads_for(const Job& job, const Candidate& candidate);

Shares shares_of(const std::vector<layout::UnitLayout>& layouts, const Job& job, Strategy strategy);

/// The formula of docs/design/memory.md, for all strategies, dtypes and hosts. Bytes of a host with
/// R ranks; P parameters in the dtype that is computed with, each once a host (once a rank where
/// hosts share parameters among them, its slice); S of what is updated, in its dtype; A what a
/// forward leaves, T a tied table, U whole gradients that wait: three units inside a host, what the
/// timeline holds between hosts; B buffers of gathered units; M libraries.
///
///   start             P + R (whole model) + R M
///   backward begins   P + 2 S + R A + R (B + U between hosts) + R M      + S after a first forward
///   block recomputed  P + 2 S + R (inputs of blocks + A of one) + R (T + U + B) + R M       ditto
///   backward ends     P + 3 S + R (2 T + U + B) + R M       + R A with libtorch's own allocator
///
/// and masters, another S, where P is in another dtype.
MemoryEstimate memory_of(const Job& job, const Candidate& candidate, const UnitSet& set,
                         const Shares& shares, const Timeline& timeline);

}  // namespace fullshard::planner
