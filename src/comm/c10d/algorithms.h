#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/c10d/transfer.h"
#include "comm/shared/arguments.h"
#include "fullshard/comm/types.h"

namespace fullshard::comm::c10d {

// How collectives are made of messages. All ranks call the same function with arguments that are
// known to fit; returns when this rank's part is done. docs/communication.md counts the bytes.

/// This rank's place in the group.
struct Seat {
  int rank;
  int size;

  /// The rank `steps` places further on, around the circle. Everybody starts at its own place, so
  /// that not all send to one rank at once.
  int after(int steps) const { return (rank + steps) % size; }
};

/// Cuts a buffer into parts for `ranks` ranks, as equal as whole cache lines allow.
shared::Parts cut_evenly(std::int64_t count, int ranks, base::DType dtype);

void all_gather(Transfer& transfer, Seat seat, const void* mine, void* all,
                const shared::Parts& parts, base::DType dtype);

/// `mine` may be this rank's part of `all`. `chunk` is how many bytes come from each other rank at
/// a time.
void reduce_scatter(Transfer& transfer, Seat seat, const void* all, void* mine,
                    const shared::Parts& parts, base::DType dtype, ReduceOp op, std::size_t chunk);

void all_reduce(Transfer& transfer, Seat seat, Buffer inout, ReduceOp op, std::size_t chunk);

void broadcast(Transfer& transfer, Seat seat, Buffer inout, int root);

void all_to_all(Transfer& transfer, Seat seat, const void* send, const shared::Parts& send_parts,
                void* recv, const shared::Parts& recv_parts, base::DType dtype);

}  // namespace fullshard::comm::c10d
