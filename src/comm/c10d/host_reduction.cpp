#include "comm/c10d/host_reduction.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "comm/half.h"
#include "comm/sums.h"
#include "fullshard/comm/reduce.h"

namespace fullshard::comm::c10d {
namespace {

using base::DType;
using shared::bytes_of;
using shared::Parts;

constexpr std::size_t kLine = 64;

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
std::size_t round_up(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

template <typename T>
void divide(T* values, std::int64_t count, T by) {
  for (std::int64_t i = 0; i < count; ++i) values[i] /= by;
}

template <typename T>
void narrow_all(const float* values, void* out, std::int64_t count) {
  auto* narrowed = static_cast<T*>(out);
  for (std::int64_t i = 0; i < count; ++i) narrow(values[i], narrowed[i]);
}

}  // namespace

// One reduce-scatter. Slots are scratch for one slice each: what this rank has added up for a rank,
// and what it receives from a host.
struct HostReduction::Operation {
  Operation(HostReduction& setting, Call to_make, const void* from, void* to, const Parts& cut,
            DType type, ReduceOp reduce_op)
      : reduction(setting),
        call(to_make),
        all(static_cast<const std::byte*>(from)),
        mine(static_cast<std::byte*>(to)),
        parts(cut),
        dtype(type),
        op(reduce_op),
        wire(type_of_sums(type, reduce_op)),
        carried(setting.hosts_.carried(setting.seat_.rank)) {
    // A slice of every rank's part has to fit an area.
    const auto fitting = reduction.area_bytes_ / index(reduction.seat_.size) / kLine * kLine;
    step = static_cast<std::int64_t>(fitting / base::size_of(dtype));
    slot_bytes = round_up(bytes_of(std::min(step, parts.longest), wire));
    const std::size_t slots = carried.size() + index(reduction.hosts_.hosts()) + 1;
    scratch.resize(2 * slots * slot_bytes);
  }

  std::int64_t rounds() const { return (parts.longest + step - 1) / step; }

  std::int64_t elements(int rank, std::int64_t round) const {
    return std::clamp<std::int64_t>(parts.counts[index(rank)] - round * step, 0, step);
  }
  const std::byte* slice(int rank, std::int64_t round) const {
    return all + bytes_of(parts.offsets[index(rank)] + round * step, dtype);
  }
  std::byte* slot(std::size_t number, std::int64_t round) {
    const std::size_t slots = scratch.size() / slot_bytes / 2;
    return scratch.data() + (static_cast<std::size_t>(round % 2) * slots + number) * slot_bytes;
  }
  std::byte* sum_slot(std::size_t carried_index, std::int64_t round) {
    return slot(carried_index, round);
  }
  std::byte* host_slot(int host, std::int64_t round) {
    return slot(carried.size() + index(host), round);
  }

  void receive(std::int64_t round);
  void stage(std::int64_t round);
  void add_up_here(std::int64_t round);
  void add_up_hosts(std::int64_t round);
  void finish_slice(std::byte* sum, std::byte* out, std::int64_t count);

  HostReduction& reduction;
  Call call;
  const std::byte* all;
  std::byte* mine;
  const Parts& parts;
  DType dtype;
  ReduceOp op;
  DType wire;  // of what crosses between hosts
  std::vector<int> carried;
  std::int64_t step = 0;
  std::size_t slot_bytes = 0;
  std::vector<std::byte> scratch;
};

void HostReduction::Operation::receive(std::int64_t round) {
  const HostMap& hosts = reduction.hosts_;
  const int rank = reduction.seat_.rank;
  for (int host = 0; host < hosts.hosts(); ++host) {
    if (host == reduction.here_) continue;
    call.transfer.recv(hosts.carrier(rank, host), host_slot(host, round),
                       bytes_of(elements(rank, round), wire));
  }
}

// Shows the host-mates this rank's slices, but for those that it will add up itself.
void HostReduction::Operation::stage(std::int64_t round) {
  if (reduction.staging_ == nullptr) return;
  std::byte* area = reduction.area(reduction.inside_.rank(), round);
  for (int rank = 0; rank < reduction.seat_.size; ++rank) {
    const std::int64_t count = elements(rank, round);
    const bool own = std::find(carried.begin(), carried.end(), rank) != carried.end();
    if (count == 0 || own) continue;
    std::memcpy(area + index(rank) * bytes_of(step, dtype), slice(rank, round),
                bytes_of(count, dtype));
  }
  reduction.inside_.barrier(call.tag);
}

void HostReduction::Operation::add_up_here(std::int64_t round) {
  const int locals = reduction.inside_.size();
  std::vector<const void*> pieces(index(locals));
  for (std::size_t i = 0; i < carried.size(); ++i) {
    const int rank = carried[i];
    const std::int64_t count = elements(rank, round);
    if (count == 0) continue;
    for (int local = 0; local < locals; ++local) {
      pieces[index(local)] =
          local == reduction.inside_.rank()
              ? slice(rank, round)
              : reduction.area(local, round) + index(rank) * bytes_of(step, dtype);
    }
    reduce_parts_to(pieces, dtype, sum_slot(i, round), wire, count,
                    op == ReduceOp::kMean ? ReduceOp::kSum : op);
    if (rank == reduction.seat_.rank) continue;
    call.transfer.send(rank, sum_slot(i, round), bytes_of(count, wire));
  }
}

void HostReduction::Operation::add_up_hosts(std::int64_t round) {
  const int rank = reduction.seat_.rank;
  const std::int64_t count = elements(rank, round);
  if (count == 0) return;
  std::vector<const void*> sums;
  for (int host = 0; host < reduction.hosts_.hosts(); ++host) {
    const auto own =
        static_cast<std::size_t>(std::find(carried.begin(), carried.end(), rank) - carried.begin());
    sums.push_back(host == reduction.here_ ? sum_slot(own, round) : host_slot(host, round));
  }
  std::byte* out = mine + bytes_of(round * step, dtype);
  std::byte* sum = wire == dtype ? out : host_slot(reduction.hosts_.hosts(), round);
  reduce_parts(sums, sum, count, wire, op == ReduceOp::kMean ? ReduceOp::kSum : op);
  finish_slice(sum, out, count);
}

// Divides for a mean, and rounds to the type of the result.
void HostReduction::Operation::finish_slice(std::byte* sum, std::byte* out, std::int64_t count) {
  if (op == ReduceOp::kMean && wire == DType::kFloat32) {
    divide(reinterpret_cast<float*>(sum), count, static_cast<float>(reduction.seat_.size));
  } else if (op == ReduceOp::kMean) {
    divide(reinterpret_cast<double*>(sum), count, static_cast<double>(reduction.seat_.size));
  }
  if (wire == dtype) return;
  if (dtype == DType::kBFloat16) {
    narrow_all<BFloat16>(reinterpret_cast<const float*>(sum), out, count);
  } else {
    narrow_all<Float16>(reinterpret_cast<const float*>(sum), out, count);
  }
}

HostReduction::HostReduction(Seat seat, const HostMap& hosts, Group& inside, std::size_t chunk)
    : seat_(seat),
      hosts_(hosts),
      here_(hosts.host_of(seat.rank)),
      inside_(inside),
      area_bytes_(std::max(round_up(chunk), kLine * index(seat.size))) {
  if (inside.size() == 1) return;
  staging_ = inside.allocate_shared(2 * area_bytes_ * index(inside.size()), "sums of a host");
}

std::byte* HostReduction::area(int local, std::int64_t round) const {
  const std::size_t number = 2 * index(local) + static_cast<std::size_t>(round % 2);
  return staging_->data() + number * area_bytes_;
}

// What is staged in a round is overwritten two rounds later, past the barrier of the round between,
// at which everyone has read it.
void HostReduction::run(Call call, const void* all, void* mine, const Parts& parts, DType dtype,
                        ReduceOp op) {
  Operation operation(*this, call, all, mine, parts, dtype, op);
  std::size_t sent_before = 0;
  for (std::int64_t round = 0; round < operation.rounds(); ++round) {
    operation.receive(round);
    operation.stage(round);
    operation.add_up_here(round);
    if (round > 0) {
      call.transfer.finish(sent_before);
      operation.add_up_hosts(round - 1);
    }
    sent_before = call.transfer.posted();
  }
  call.transfer.finish();
  if (operation.rounds() > 0) operation.add_up_hosts(operation.rounds() - 1);
}

}  // namespace fullshard::comm::c10d
