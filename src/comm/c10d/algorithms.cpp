#include "comm/c10d/algorithms.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "fullshard/comm/reduce.h"

namespace fullshard::comm::c10d {
namespace {

using base::DType;
using shared::bytes_of;
using shared::Parts;

// Up to these many bytes it is quicker that everybody sends everything to everyone.
constexpr std::size_t kSmallReduction = std::size_t{16} << 10;
constexpr std::size_t kSmallBroadcast = std::size_t{64} << 10;

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

// Element `at` of a buffer; null stays null, for buffers without elements.
const std::byte* place(const void* data, std::int64_t at, DType dtype) {
  return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + bytes_of(at, dtype);
}

std::byte* place(void* data, std::int64_t at, DType dtype) {
  return data == nullptr ? nullptr : static_cast<std::byte*>(data) + bytes_of(at, dtype);
}

void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

// The rounds of a reduce-scatter: while one is reduced, the next is on its way.
class Rounds {
 public:
  Rounds(Transfer& transfer, Seat seat, const void* all, void* mine, const Parts& parts,
         DType dtype, std::size_t chunk)
      : transfer_(transfer),
        seat_(seat),
        all_(all),
        mine_(mine),
        parts_(parts),
        dtype_(dtype),
        step_(static_cast<std::int64_t>(std::max<std::size_t>(chunk / base::size_of(dtype), 1))) {
    const std::int64_t longest = std::min(step_, parts.counts[index(seat.rank)]);
    slot_ = (bytes_of(longest, dtype) + 63) / 64 * 64;
    scratch_.resize(2 * slot_ * static_cast<std::size_t>(seat.size - 1));
  }

  std::int64_t count() const { return (parts_.longest + step_ - 1) / step_; }

  /// Starts the messages of a round; returns how many there are by then.
  std::size_t post(std::int64_t round) {
    for (int i = 1; i < seat_.size; ++i) {
      const int to = seat_.after(i);
      const int from = seat_.after(seat_.size - i);
      transfer_.recv(from, slot(from, round), bytes_of(elements(seat_.rank, round), dtype_));
      transfer_.send(to, place(all_, parts_.offsets[index(to)] + round * step_, dtype_),
                     bytes_of(elements(to, round), dtype_));
    }
    return transfer_.posted();
  }

  void reduce(std::int64_t round, ReduceOp op) {
    const std::int64_t n = elements(seat_.rank, round);
    if (n == 0) return;
    std::vector<const void*> pieces(index(seat_.size));
    for (int rank = 0; rank < seat_.size; ++rank) {
      pieces[index(rank)] = rank == seat_.rank
                                ? place(all_, parts_.offsets[index(rank)] + round * step_, dtype_)
                                : slot(rank, round);
    }
    reduce_parts(pieces, place(mine_, round * step_, dtype_), n, dtype_, op);
  }

 private:
  std::int64_t elements(int rank, std::int64_t round) const {
    return std::clamp<std::int64_t>(parts_.counts[index(rank)] - round * step_, 0, step_);
  }

  std::byte* slot(int from, std::int64_t round) {
    const std::size_t place = index(from < seat_.rank ? from : from - 1);
    const std::size_t half = static_cast<std::size_t>(round % 2) * index(seat_.size - 1);
    return scratch_.data() + (half + place) * slot_;
  }

  Transfer& transfer_;
  Seat seat_;
  const void* all_;
  void* mine_;
  const Parts& parts_;
  DType dtype_;
  std::int64_t step_;  // elements a round
  std::size_t slot_;   // bytes
  std::vector<std::byte> scratch_;
};

void reduce_whole(Transfer& transfer, Seat seat, Buffer inout, ReduceOp op) {
  const std::size_t bytes = bytes_of(inout.count, inout.dtype);
  std::vector<std::byte> scratch(bytes * index(seat.size));
  std::vector<const void*> pieces;
  for (int rank = 0; rank < seat.size; ++rank) {
    pieces.push_back(rank == seat.rank ? inout.data : scratch.data() + index(rank) * bytes);
  }
  for (int i = 1; i < seat.size; ++i) {
    const int from = seat.after(seat.size - i);
    transfer.recv(from, scratch.data() + index(from) * bytes, bytes);
    transfer.send(seat.after(i), inout.data, bytes);
  }
  transfer.finish();
  reduce_parts(pieces, inout.data, inout.count, inout.dtype, op);
}

}  // namespace

Parts cut_evenly(std::int64_t count, int ranks, DType dtype) {
  const auto line = static_cast<std::int64_t>(64 / base::size_of(dtype));
  const std::int64_t lines = (count + line - 1) / line;
  const std::int64_t each = (lines + ranks - 1) / ranks * line;
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < ranks; ++rank) {
    counts.push_back(std::clamp<std::int64_t>(count - rank * each, 0, each));
  }
  return shared::cut(counts, ranks, "a cut");
}

void all_gather(Transfer& transfer, Seat seat, const void* mine, void* all, const Parts& parts,
                DType dtype) {
  const auto bytes = [&](int rank) { return bytes_of(parts.counts[index(rank)], dtype); };
  for (int i = 1; i < seat.size; ++i) {
    const int from = seat.after(seat.size - i);
    transfer.recv(from, place(all, parts.offsets[index(from)], dtype), bytes(from));
    transfer.send(seat.after(i), mine, bytes(seat.rank));
  }
  copy(place(all, parts.offsets[index(seat.rank)], dtype), mine, bytes(seat.rank));
  transfer.finish();
}

void reduce_scatter(Transfer& transfer, Seat seat, const void* all, void* mine, const Parts& parts,
                    DType dtype, ReduceOp op, std::size_t chunk) {
  Rounds rounds(transfer, seat, all, mine, parts, dtype, chunk);
  std::size_t posted = rounds.count() > 0 ? rounds.post(0) : 0;
  for (std::int64_t round = 0; round < rounds.count(); ++round) {
    const std::size_t here = posted;
    if (round + 1 < rounds.count()) posted = rounds.post(round + 1);
    transfer.finish(here);
    rounds.reduce(round, op);
  }
}

void all_reduce(Transfer& transfer, Seat seat, Buffer inout, ReduceOp op, std::size_t chunk) {
  if (inout.count == 0) return;
  if (bytes_of(inout.count, inout.dtype) <= kSmallReduction) {
    return reduce_whole(transfer, seat, inout, op);
  }
  const Parts parts = cut_evenly(inout.count, seat.size, inout.dtype);
  void* mine = place(inout.data, parts.offsets[index(seat.rank)], inout.dtype);
  reduce_scatter(transfer, seat, inout.data, mine, parts, inout.dtype, op, chunk);
  all_gather(transfer, seat, mine, inout.data, parts, inout.dtype);
}

// A large buffer goes out in pieces, one to each rank, which hands it on to the others: the root
// sends it about twice, not once to every rank.
void broadcast(Transfer& transfer, Seat seat, Buffer inout, int root) {
  const bool direct = seat.size == 2 || bytes_of(inout.count, inout.dtype) <= kSmallBroadcast;
  const Parts parts = cut_evenly(inout.count, direct ? 1 : seat.size, inout.dtype);
  const auto piece = [&](int rank) {
    const std::size_t r = direct ? 0 : index(rank);
    return std::pair(place(inout.data, parts.offsets[r], inout.dtype),
                     bytes_of(parts.counts[r], inout.dtype));
  };
  const auto [own, own_bytes] = piece(seat.rank);
  if (seat.rank == root) {
    for (int i = 1; i < seat.size; ++i) {
      const int to = seat.after(i);
      if (!direct) transfer.send(to, piece(to).first, piece(to).second);
      transfer.send(to, own, own_bytes);
    }
    return transfer.finish();
  }
  transfer.recv(root, own, own_bytes);
  const std::size_t own_is_here = transfer.posted();
  if (direct) return transfer.finish();
  for (int other = 0; other < seat.size; ++other) {
    if (other != seat.rank) transfer.recv(other, piece(other).first, piece(other).second);
  }
  transfer.finish(own_is_here);
  for (int i = 1; i < seat.size; ++i) {
    if (const int to = seat.after(i); to != root) transfer.send(to, own, own_bytes);
  }
  transfer.finish();
}

void all_to_all(Transfer& transfer, Seat seat, const void* send, const Parts& send_parts,
                void* recv, const Parts& recv_parts, DType dtype) {
  for (int i = 1; i < seat.size; ++i) {
    const int to = seat.after(i);
    const int from = seat.after(seat.size - i);
    transfer.recv(from, place(recv, recv_parts.offsets[index(from)], dtype),
                  bytes_of(recv_parts.counts[index(from)], dtype));
    transfer.send(to, place(send, send_parts.offsets[index(to)], dtype),
                  bytes_of(send_parts.counts[index(to)], dtype));
  }
  copy(place(recv, recv_parts.offsets[index(seat.rank)], dtype),
       place(send, send_parts.offsets[index(seat.rank)], dtype),
       bytes_of(send_parts.counts[index(seat.rank)], dtype));
  transfer.finish();
}

}  // namespace fullshard::comm::c10d
