#include "comm/shared/shared_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "comm/shared/collective_call.h"
#include "fullshard/comm/reduce.h"

namespace fullshard::comm::shared {
namespace {

using base::DType;

// Up to this many bytes every rank reduces the whole by itself: one meeting instead of two.
constexpr std::int64_t kSmallReduction = 16 << 10;

// Element `index` of the buffer; `index` is 0 where the buffer may be null.
const std::byte* at(const void* data, std::int64_t index, DType dtype) {
  return static_cast<const std::byte*>(data) + bytes_of(index, dtype);
}

std::byte* at(void* data, std::int64_t index, DType dtype) {
  return static_cast<std::byte*>(data) + bytes_of(index, dtype);
}

// A run of elements inside a buffer; no address is formed for an empty run, whose buffer may be
// null.
template <typename Pointer>
struct Place {
  Pointer data;
  std::int64_t index = 0;
};

void copy(Place<void*> to, Place<const void*> from, std::int64_t count, DType dtype) {
  if (count <= 0) return;
  std::byte* target = at(to.data, to.index, dtype);
  const std::byte* source = at(from.data, from.index, dtype);
  if (target != source) std::memmove(target, source, bytes_of(count, dtype));
}

// Elements of the part [begin, begin + step) that exist.
std::int64_t slice(std::int64_t count, std::int64_t begin, std::int64_t step) {
  return std::clamp<std::int64_t>(count - begin, 0, step);
}

}  // namespace

SharedGroup::SharedGroup(std::shared_ptr<Session> session) : session_(std::move(session)) {}

// Elements that fit one of `pieces` equal 64-byte aligned pieces of a staging half.
std::int64_t SharedGroup::staged_elements(DType dtype, int pieces) const {
  const std::size_t piece = session_->block().staging_bytes() / static_cast<std::size_t>(pieces);
  const std::size_t aligned = piece >= 64 ? piece / 64 * 64 : piece;
  return static_cast<std::int64_t>(std::max<std::size_t>(aligned / base::size_of(dtype), 1));
}

Work SharedGroup::all_gather(ConstBuffer mine, Buffer all, std::span<const std::int64_t> counts,
                             const OpTag& tag) {
  const Parts parts = cut_whole(all, mine, counts, rank(), size(), "all_gather");
  OperationRecord record(OperationKind::kAllGather, all, tag);
  record.set_counts(parts.counts);
  CollectiveCall call(*session_, busy_, record);
  const std::int64_t step = staged_elements(all.dtype, 1);
  for (std::int64_t begin = 0; size() > 1 && (begin == 0 || begin < parts.longest); begin += step) {
    copy({staging(rank())}, {mine.data, begin}, slice(mine.count, begin, step), all.dtype);
    call.meet();
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) continue;
      const auto r = static_cast<std::size_t>(other);
      copy({all.data, parts.offsets[r] + begin}, {staging(other)},
           slice(parts.counts[r], begin, step), all.dtype);
    }
    half_ ^= 1U;
  }
  const auto own = static_cast<std::size_t>(rank());
  copy({all.data, parts.offsets[own]}, {mine.data}, mine.count, all.dtype);
  call.finish();
  return {};
}

Work SharedGroup::reduce_scatter(ConstBuffer all, Buffer mine, ReduceOp op,
                                 std::span<const std::int64_t> counts, const OpTag& tag) {
  const Parts parts = cut_whole(all, mine, counts, rank(), size(), "reduce_scatter");
  check_reduction(all.dtype, op, "reduce_scatter");
  OperationRecord record(OperationKind::kReduceScatter, all, tag);
  record.op = op;
  record.set_counts(parts.counts);
  CollectiveCall call(*session_, busy_, record);
  const std::int64_t step = staged_elements(all.dtype, size());
  std::vector<const void*> pieces(static_cast<std::size_t>(size()));
  for (std::int64_t begin = 0; begin == 0 || begin < parts.longest; begin += step) {
    for (int other = 0; other < size(); ++other) {
      const auto r = static_cast<std::size_t>(other);
      if (other == rank()) continue;
      copy({staging(rank()), other * step}, {all.data, parts.offsets[r] + begin},
           slice(parts.counts[r], begin, step), all.dtype);
    }
    if (size() > 1) call.meet();
    if (const std::int64_t n = slice(mine.count, begin, step); n > 0) {
      for (int other = 0; other < size(); ++other) {
        pieces[static_cast<std::size_t>(other)] = at(staging(other), rank() * step, all.dtype);
      }
      const auto own = static_cast<std::size_t>(rank());
      pieces[own] = at(all.data, parts.offsets[own] + begin, all.dtype);
      reduce_parts(pieces, at(mine.data, begin, all.dtype), n, all.dtype, op);
    }
    half_ ^= 1U;
  }
  call.finish();
  return {};
}

Work SharedGroup::all_reduce(Buffer inout, ReduceOp op, const OpTag& tag) {
  check_buffer(inout, "all_reduce");
  check_reduction(inout.dtype, op, "all_reduce");
  OperationRecord record(OperationKind::kAllReduce, inout, tag);
  record.op = op;
  CollectiveCall call(*session_, busy_, record);
  if (size() > 1) {
    auto* data = static_cast<std::byte*>(inout.data);
    const bool small = static_cast<std::int64_t>(bytes_of(inout.count, inout.dtype)) <=
                       std::min<std::int64_t>(kSmallReduction, staged_elements(DType::kUInt8, 1));
    if (small) {
      reduce_whole(call, data, inout.count, inout.dtype, op);
    } else {
      reduce_split(call, data, inout.count, inout.dtype, op);
    }
  }
  call.finish();
  return {};
}

void SharedGroup::reduce_whole(CollectiveCall& call, std::byte* data, std::int64_t count,
                               DType dtype, ReduceOp op) {
  copy({staging(rank())}, {data}, count, dtype);
  call.meet();
  std::vector<const void*> pieces(static_cast<std::size_t>(size()));
  for (int other = 0; other < size(); ++other) {
    pieces[static_cast<std::size_t>(other)] = staging(other);
  }
  reduce_parts(pieces, data, count, dtype, op);
  half_ ^= 1U;
}

// Each rank reduces one piece of a block into its own staging area, then all collect the pieces.
void SharedGroup::reduce_split(CollectiveCall& call, std::byte* data, std::int64_t count,
                               DType dtype, ReduceOp op) {
  const std::int64_t piece = staged_elements(dtype, size());
  const std::int64_t block = piece * size();
  std::vector<const void*> pieces(static_cast<std::size_t>(size()));
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const std::int64_t n = slice(count, begin, block);
    copy({staging(rank())}, {data, begin}, n, dtype);
    call.meet();
    const std::int64_t mine = rank() * piece;
    for (int other = 0; other < size(); ++other) {
      pieces[static_cast<std::size_t>(other)] = at(staging(other), mine, dtype);
    }
    reduce_parts(pieces, at(staging(rank()), mine, dtype), slice(n, mine, piece), dtype, op);
    call.meet();
    for (int other = 0; other < size(); ++other) {
      const std::int64_t from = other * piece;
      copy({data, begin + from}, {staging(other), from}, slice(n, from, piece), dtype);
    }
    half_ ^= 1U;
  }
}

Work SharedGroup::broadcast(Buffer inout, int root, const OpTag& tag) {
  check_buffer(inout, "broadcast");
  check_root(root, size(), "broadcast");
  OperationRecord record(OperationKind::kBroadcast, inout, tag);
  record.root = root;
  CollectiveCall call(*session_, busy_, record);
  const std::int64_t step = staged_elements(inout.dtype, 1);
  for (std::int64_t begin = 0; size() > 1 && (begin == 0 || begin < inout.count); begin += step) {
    const std::int64_t n = slice(inout.count, begin, step);
    if (rank() == root) copy({staging(root)}, {inout.data, begin}, n, inout.dtype);
    call.meet();
    if (rank() != root) copy({inout.data, begin}, {staging(root)}, n, inout.dtype);
    half_ ^= 1U;
  }
  call.finish();
  return {};
}

Work SharedGroup::all_to_all(ConstBuffer send, std::span<const std::int64_t> send_counts,
                             Buffer recv, std::span<const std::int64_t> recv_counts,
                             const OpTag& tag) {
  check_buffer(send, "all_to_all");
  check_buffer(recv, "all_to_all");
  check_same_type(send, recv, "all_to_all");
  const Parts out = cut(send_counts, size(), "all_to_all send");
  const Parts in = cut(recv_counts, size(), "all_to_all receive");
  check_total(send, out, "all_to_all send");
  check_total(recv, in, "all_to_all receive");
  OperationRecord record(OperationKind::kAllToAll, tag);
  record.dtype = send.dtype;
  CollectiveCall call(*session_, busy_, record);
  const std::int64_t longest = exchange_counts(call, out, in);
  const std::int64_t step = staged_elements(send.dtype, size());
  for (std::int64_t begin = 0; begin < longest; begin += step) {
    for (int other = 0; other < size(); ++other) {
      const auto r = static_cast<std::size_t>(other);
      copy({staging(rank()), other * step}, {send.data, out.offsets[r] + begin},
           slice(out.counts[r], begin, step), send.dtype);
    }
    if (size() > 1) call.meet();
    for (int other = 0; other < size(); ++other) {
      const auto r = static_cast<std::size_t>(other);
      copy({recv.data, in.offsets[r] + begin}, {staging(other), rank() * step},
           slice(in.counts[r], begin, step), send.dtype);
    }
    half_ ^= 1U;
  }
  call.finish();
  return {};
}

// Shows every rank every count, so that all find the same mismatch. Returns the largest count of
// all.
std::int64_t SharedGroup::exchange_counts(CollectiveCall& call, const Parts& send,
                                          const Parts& recv) {
  const auto ranks = static_cast<std::size_t>(size());
  const auto counts_of = [&](std::size_t r) {
    return reinterpret_cast<std::int64_t*>(staging(static_cast<int>(r)));
  };
  std::int64_t* own = counts_of(static_cast<std::size_t>(rank()));
  std::copy(send.counts.begin(), send.counts.end(), own);
  std::copy(recv.counts.begin(), recv.counts.end(), own + ranks);
  if (size() > 1) call.meet();
  std::int64_t longest = 0;
  for (std::size_t from = 0; from < ranks; ++from) {
    for (std::size_t to = 0; to < ranks; ++to) {
      const std::int64_t sent = counts_of(from)[to];
      const std::int64_t expected = counts_of(to)[ranks + from];
      if (sent != expected) {
        call.mismatch(
            fmt::format("in all_to_all, rank {} sends {} elements to rank {}, which expects {}",
                        session_->world_rank(static_cast<int>(from)), sent,
                        session_->world_rank(static_cast<int>(to)), expected));
      }
      longest = std::max(longest, sent);
    }
  }
  half_ ^= 1U;
  return longest;
}

void SharedGroup::barrier(const OpTag& tag) {
  greet(OperationRecord(OperationKind::kBarrier, tag));
}

void SharedGroup::greet(const OperationRecord& record) {
  CollectiveCall call(*session_, busy_, record);
  if (size() > 1) call.meet();
  call.finish();
}

void SharedGroup::look(const OperationRecord& record) {
  session_->look([&record] { return describe(record); });
}

}  // namespace fullshard::comm::shared
