#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/c10d/collectives.h"
#include "comm/c10d/host_reduction.h"

namespace fullshard::comm::c10d {
namespace {

using base::DType;
using shared::bytes_of;
using shared::Parts;

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

const std::byte* place(const void* data, std::int64_t at, DType dtype) {
  return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + bytes_of(at, dtype);
}

std::byte* place(void* data, std::int64_t at, DType dtype) {
  return data == nullptr ? nullptr : static_cast<std::byte*>(data) + bytes_of(at, dtype);
}

class HierarchicalCollectives final : public Collectives {
 public:
  HierarchicalCollectives(Seat seat, HostMap hosts, std::shared_ptr<Group> inside,
                          std::size_t chunk)
      : seat_(seat),
        hosts_(std::move(hosts)),
        here_(hosts_.host_of(seat.rank)),
        inside_(std::move(inside)),
        reduction_(seat, hosts_, *inside_, chunk) {}

  void all_gather(Call call, const void* mine, void* all, const Parts& parts, DType dtype) override;
  void reduce_scatter(Call call, const void* all, void* mine, const Parts& parts, DType dtype,
                      ReduceOp op) override {
    reduction_.run(call, all, mine, parts, dtype, op);
  }
  void all_reduce(Call call, Buffer inout, ReduceOp op) override;
  void broadcast(Call call, Buffer inout, int root) override;
  void all_to_all(Call call, const void* send, const Parts& send_parts, void* recv,
                  const Parts& recv_parts, DType dtype) override;

 private:
  void share_run(Call call, std::size_t run, void* all, const Parts& parts, DType dtype);
  void send_pieces(Call call, Buffer inout, int root_host);
  void receive_piece(Call call, Buffer inout, int root_host);
  void exchange_inside(Call call, const void* send, const Parts& send_parts, void* recv,
                       const Parts& recv_parts, DType dtype);

  // Who of the root's host sends piece `piece` of `pieces`.
  int sender(int root_host, int piece, int pieces) const {
    const std::vector<int>& ranks = hosts_.ranks(root_host);
    return ranks[index(piece * static_cast<int>(ranks.size()) / pieces)];
  }

  Seat seat_;
  HostMap hosts_;
  int here_;
  std::shared_ptr<Group> inside_;
  HostReduction reduction_;
};

// Each part crosses to every other host once; then the ranks of a host show each other what they
// have received, run by run, while later runs are still on their way.
void HierarchicalCollectives::all_gather(Call call, const void* mine, void* all, const Parts& parts,
                                         DType dtype) {
  const auto bytes = [&](int rank) { return bytes_of(parts.counts[index(rank)], dtype); };
  std::byte* own = place(all, parts.offsets[index(seat_.rank)], dtype);
  if (bytes(seat_.rank) > 0 && own != mine) std::memmove(own, mine, bytes(seat_.rank));
  std::vector<std::size_t> arrival;  // by run, messages to wait for
  for (std::size_t run = 0; run < hosts_.runs().size(); ++run) {
    const HostMap::Span carried = hosts_.carried(run, seat_.rank);
    for (int from = carried.first; from < carried.end; ++from) {
      if (hosts_.host_of(from) == here_) continue;
      call.transfer.recv(from, place(all, parts.offsets[index(from)], dtype), bytes(from));
    }
    arrival.push_back(call.transfer.posted());
  }
  for (int i = 1; i < hosts_.hosts(); ++i) {
    const int to = hosts_.carrier(seat_.rank, (here_ + i) % hosts_.hosts());
    call.transfer.send(to, own, bytes(seat_.rank));
  }
  for (std::size_t run = 0; run < hosts_.runs().size(); ++run) {
    call.transfer.finish(arrival[run]);
    share_run(call, run, all, parts, dtype);
  }
  call.transfer.finish();
}

void HierarchicalCollectives::share_run(Call call, std::size_t run, void* all, const Parts& parts,
                                        DType dtype) {
  if (inside_->size() == 1) return;
  const auto elements = [&](HostMap::Span span) {
    std::int64_t count = 0;
    for (int r = span.first; r < span.end; ++r) count += parts.counts[index(r)];
    return count;
  };
  std::vector<std::int64_t> counts;
  for (const int rank : hosts_.ranks(here_)) counts.push_back(elements(hosts_.carried(run, rank)));
  const auto& [host, first, end] = hosts_.runs()[run];
  const HostMap::Span own = hosts_.carried(run, seat_.rank);
  const Buffer whole{place(all, parts.offsets[index(first)], dtype), elements({first, end}), dtype};
  if (whole.count == 0) return;
  inside_
      ->all_gather({place(all, parts.offsets[index(own.first)], dtype), elements(own), dtype},
                   whole, counts, call.tag)
      .wait();
}

void HierarchicalCollectives::all_reduce(Call call, Buffer inout, ReduceOp op) {
  if (inout.count == 0) return;
  const Parts parts = cut_evenly(inout.count, seat_.size, inout.dtype);
  void* mine = place(inout.data, parts.offsets[index(seat_.rank)], inout.dtype);
  reduction_.run(call, inout.data, mine, parts, inout.dtype, op);
  all_gather(call, mine, inout.data, parts, inout.dtype);
}

// The ranks of the root's host send every other host its pieces, one to each rank there.
void HierarchicalCollectives::broadcast(Call call, Buffer inout, int root) {
  if (inout.count == 0) return;
  const int root_host = hosts_.host_of(root);
  if (root_host == here_) {
    inside_->broadcast(inout, hosts_.local(root), call.tag).wait();
    return send_pieces(call, inout, root_host);
  }
  receive_piece(call, inout, root_host);
}

void HierarchicalCollectives::send_pieces(Call call, Buffer inout, int root_host) {
  for (int i = 1; i < hosts_.hosts(); ++i) {
    const std::vector<int>& receivers = hosts_.ranks((here_ + i) % hosts_.hosts());
    const int pieces = static_cast<int>(receivers.size());
    const Parts parts = cut_evenly(inout.count, pieces, inout.dtype);
    for (int piece = 0; piece < pieces; ++piece) {
      if (sender(root_host, piece, pieces) != seat_.rank) continue;
      call.transfer.send(receivers[index(piece)],
                         place(inout.data, parts.offsets[index(piece)], inout.dtype),
                         bytes_of(parts.counts[index(piece)], inout.dtype));
    }
  }
  call.transfer.finish();
}

void HierarchicalCollectives::receive_piece(Call call, Buffer inout, int root_host) {
  const int pieces = inside_->size();
  const int piece = hosts_.local(seat_.rank);
  const Parts parts = cut_evenly(inout.count, pieces, inout.dtype);
  const Buffer own{place(inout.data, parts.offsets[index(piece)], inout.dtype),
                   parts.counts[index(piece)], inout.dtype};
  call.transfer.recv(sender(root_host, piece, pieces), own.data, bytes_of(own.count, own.dtype));
  call.transfer.finish();
  inside_->all_gather(own, inout, parts.counts, call.tag).wait();
}

void HierarchicalCollectives::all_to_all(Call call, const void* send, const Parts& send_parts,
                                         void* recv, const Parts& recv_parts, DType dtype) {
  for (int i = 1; i < seat_.size; ++i) {
    const int to = seat_.after(i);
    const int from = seat_.after(seat_.size - i);
    if (hosts_.host_of(from) != here_) {
      call.transfer.recv(from, place(recv, recv_parts.offsets[index(from)], dtype),
                         bytes_of(recv_parts.counts[index(from)], dtype));
    }
    if (hosts_.host_of(to) != here_) {
      call.transfer.send(to, place(send, send_parts.offsets[index(to)], dtype),
                         bytes_of(send_parts.counts[index(to)], dtype));
    }
  }
  exchange_inside(call, send, send_parts, recv, recv_parts, dtype);
  call.transfer.finish();
}

// The parts for this host's ranks need not lie side by side.
void HierarchicalCollectives::exchange_inside(Call call, const void* send, const Parts& send_parts,
                                              void* recv, const Parts& recv_parts, DType dtype) {
  std::vector<std::int64_t> send_counts;
  std::vector<std::int64_t> recv_counts;
  std::vector<std::byte> out;
  for (const int rank : hosts_.ranks(here_)) {
    send_counts.push_back(send_parts.counts[index(rank)]);
    recv_counts.push_back(recv_parts.counts[index(rank)]);
    const std::byte* part = place(send, send_parts.offsets[index(rank)], dtype);
    if (part != nullptr) out.insert(out.end(), part, part + bytes_of(send_counts.back(), dtype));
  }
  const auto total = std::accumulate(recv_counts.begin(), recv_counts.end(), std::int64_t{0});
  std::vector<std::byte> in(bytes_of(total, dtype));
  inside_
      ->all_to_all(
          {out.data(), static_cast<std::int64_t>(out.size() / base::size_of(dtype)), dtype},
          send_counts, {in.data(), total, dtype}, recv_counts, call.tag)
      .wait();
  const std::byte* part = in.data();
  for (const int rank : hosts_.ranks(here_)) {
    const std::size_t bytes = bytes_of(recv_parts.counts[index(rank)], dtype);
    if (bytes == 0) continue;
    std::memcpy(place(recv, recv_parts.offsets[index(rank)], dtype), part, bytes);
    part += bytes;
  }
}

}  // namespace

std::unique_ptr<Collectives> make_hierarchical_collectives(Seat seat, HostMap hosts,
                                                           std::shared_ptr<Group> inside,
                                                           std::size_t chunk) {
  return std::make_unique<HierarchicalCollectives>(seat, std::move(hosts), std::move(inside),
                                                   chunk);
}

}  // namespace fullshard::comm::c10d
