#pragma once

#include <cstdint>
#include <vector>

#include "comm/shared/arguments.h"

namespace fullshard::comm::device {

// How collectives over devices are made of the calls that a backend offers: values, so that what
// will be called is known, and tested, without a device. Offsets and counts are in elements.

/// A run of elements that goes to, or comes from, another rank.
struct Piece {
  int peer;
  std::int64_t offset;
  std::int64_t count;

  bool operator==(const Piece&) const = default;
};

/// Messages that go at the same time, as one group of calls. Nothing in it is empty.
struct Exchange {
  std::vector<Piece> sends;
  std::vector<Piece> recvs;

  bool empty() const { return sends.empty() && recvs.empty(); }
};

/// An all_gather: one call of the backend when that may be used and all parts are equal, else
/// messages, sent from the own part and received into the whole.
struct GatherPlan {
  bool one_call = false;
  Exchange exchange;
};

GatherPlan plan_all_gather(const shared::Parts& parts, int rank, bool may_use_one_call);

/// `count` elements from `offset` on are to be what the elements from each of `addends` on add up
/// to, in that order.
struct Sum {
  std::int64_t offset = 0;
  std::int64_t count = 0;
  std::vector<std::int64_t> addends;
};

/// One round of a reduce_scatter: pieces are sent from the whole and received into scratch, then
/// combined into the own part. Addends are by rank: in scratch, that of the rank itself in the
/// whole.
struct ReduceRound {
  Exchange exchange;
  Sum sum;
};

/// While one round is combined, the next is on its way, so scratch has two halves.
struct ReducePlan {
  std::int64_t scratch = 0;
  std::vector<ReduceRound> rounds;
};

/// `step` is how many elements come from each other rank at a time.
ReducePlan plan_reduce_scatter(const shared::Parts& parts, int rank, std::int64_t step);

/// Messages between every two ranks; the own part does not travel.
Exchange plan_all_to_all(const shared::Parts& send, const shared::Parts& recv, int rank);

/// Equal parts for `ranks` ranks of which the last may be shorter or empty, each of whole blocks of
/// `block` elements but the last one.
shared::Parts cut_evenly(std::int64_t count, int ranks, std::int64_t block);

}  // namespace fullshard::comm::device
