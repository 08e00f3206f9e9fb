#include "comm/device/plan.h"

#include <algorithm>

#include "comm/device/pieces.h"

namespace fullshard::comm::device {
namespace {

using shared::Parts;

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

// Calls `visit(to, from)` for the other ranks, everybody beginning with its neighbours, so that not
// all send to one rank at once.
template <typename Visit>
void around(int rank, int size, Visit visit) {
  for (int i = 1; i < size; ++i) visit((rank + i) % size, (rank + size - i) % size);
}

}  // namespace

GatherPlan plan_all_gather(const Parts& parts, int rank, bool may_use_one_call) {
  const auto own = parts.counts[index(rank)];
  const bool equal = std::all_of(parts.counts.begin(), parts.counts.end(),
                                 [&](std::int64_t count) { return count == own; });
  if (equal && may_use_one_call) return {own > 0, {}};
  GatherPlan plan;
  around(rank, static_cast<int>(parts.counts.size()), [&](int to, int from) {
    add(plan.exchange.sends, {to, 0, own});
    add(plan.exchange.recvs, {from, parts.offsets[index(from)], parts.counts[index(from)]});
  });
  return plan;
}

ReducePlan plan_reduce_scatter(const Parts& parts, int rank, std::int64_t step) {
  const int size = static_cast<int>(parts.counts.size());
  const std::int64_t own = parts.counts[index(rank)];
  const std::int64_t slot = std::min(step, own);
  ReducePlan plan;
  plan.scratch = 2 * slot * (size - 1);
  const auto slot_of = [&](int from, std::int64_t round) {
    const int place = from < rank ? from : from - 1;
    return ((round % 2) * (size - 1) + place) * slot;
  };
  for (std::int64_t begin = 0; begin < parts.longest; begin += step) {
    const auto round = static_cast<std::int64_t>(plan.rounds.size());
    ReduceRound next{{}, {begin, slice(own, begin, step), {}}};
    around(rank, size, [&](int to, int from) {
      add(next.exchange.sends,
          {to, parts.offsets[index(to)] + begin, slice(parts.counts[index(to)], begin, step)});
      add(next.exchange.recvs, {from, slot_of(from, round), next.sum.count});
    });
    for (int from = 0; from < size; ++from) {
      next.sum.addends.push_back(from == rank ? parts.offsets[index(rank)] + begin
                                              : slot_of(from, round));
    }
    plan.rounds.push_back(std::move(next));
  }
  return plan;
}

Exchange plan_all_to_all(const Parts& send, const Parts& recv, int rank) {
  Exchange exchange;
  around(rank, static_cast<int>(send.counts.size()), [&](int to, int from) {
    add(exchange.sends, {to, send.offsets[index(to)], send.counts[index(to)]});
    add(exchange.recvs, {from, recv.offsets[index(from)], recv.counts[index(from)]});
  });
  return exchange;
}

Parts cut_evenly(std::int64_t count, int ranks, std::int64_t block) {
  const std::int64_t blocks = (count + block - 1) / block;
  const std::int64_t each = (blocks + ranks - 1) / ranks * block;
  std::vector<std::int64_t> counts(index(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    counts[index(rank)] = std::clamp<std::int64_t>(count - rank * each, 0, each);
  }
  return shared::cut(counts, ranks, "a cut");
}

}  // namespace fullshard::comm::device
