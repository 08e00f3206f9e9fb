#include "comm/c10d/device_collectives.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

namespace fullshard::comm::c10d {
namespace {

using base::DType;
using shared::bytes_of;
using shared::Parts;

// Up to these many bytes a rank it is quicker to have everything everywhere and add it up there.
constexpr std::size_t kSmallReduction = std::size_t{256} << 10;

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

void wait(const std::vector<c10::intrusive_ptr<::c10d::Work>>& started) {
  for (const auto& work : started) {
    if (work) work->wait();
  }
}

at::Tensor view_of(const void* data, std::int64_t count, at::ScalarType type, c10::Device device) {
  return at::for_blob(const_cast<void*>(data), {count})
      .options(at::TensorOptions().dtype(type).device(device))
      .target_device(device)
      .make_tensor();
}

bool is_power_of_two(std::size_t n) { return (n & (n - 1)) == 0; }

// A scalar divisor would be turned into a factor on some devices, which rounds differently.
void divide(at::Tensor& sum, std::size_t n) {
  if (is_power_of_two(n)) {
    sum.mul_(1.0 / static_cast<double>(n));
  } else {
    sum.div_(at::full({1}, static_cast<double>(n), sum.options()));
  }
}

}  // namespace

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return at::kFloat;
    case DType::kFloat64: return at::kDouble;
    case DType::kBFloat16: return at::kBFloat16;
    case DType::kFloat16: return at::kHalf;
    case DType::kInt8: return at::kChar;
    case DType::kUInt8:
    case DType::kBool: return at::kByte;
    case DType::kInt16: return at::kShort;
    case DType::kInt32: return at::kInt;
    case DType::kInt64: return at::kLong;
  }
  return at::kByte;
}

void combine(const std::vector<at::Tensor>& addends, at::Tensor out, ReduceOp op) {
  const at::ScalarType type = addends.front().scalar_type();
  const bool half = type == at::kHalf || type == at::kBFloat16;
  if (addends.size() == 1) {
    if (out.data_ptr() != addends.front().data_ptr()) out.copy_(addends.front());
    return;
  }
  at::Tensor result = addends.front().to(half ? at::kFloat : type, false, /*copy=*/true);
  for (std::size_t i = 1; i < addends.size(); ++i) {
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kMean: result.add_(addends[i]); break;
      case ReduceOp::kMin: result = at::minimum(result, addends[i]); break;
      case ReduceOp::kMax: result = at::maximum(result, addends[i]); break;
    }
  }
  if (op == ReduceOp::kMean) divide(result, addends.size());
  out.copy_(result);
}

DeviceCollectives::DeviceCollectives(c10::intrusive_ptr<::c10d::Backend> backend, int rank,
                                     int size, c10::Device device, std::size_t chunk)
    : backend_(std::move(backend)), rank_(rank), size_(size), device_(device), chunk_(chunk) {}

at::Tensor DeviceCollectives::elements(ConstBuffer buffer, std::int64_t offset,
                                       std::int64_t count) const {
  const auto* data = static_cast<const std::byte*>(buffer.data) + bytes_of(offset, buffer.dtype);
  return view_of(data, count, scalar_type(buffer.dtype), device_);
}

at::Tensor DeviceCollectives::bytes(ConstBuffer buffer, std::int64_t offset,
                                    std::int64_t count) const {
  const auto* data = static_cast<const std::byte*>(buffer.data) + bytes_of(offset, buffer.dtype);
  return view_of(data, static_cast<std::int64_t>(bytes_of(count, buffer.dtype)), at::kByte,
                 device_);
}

at::Tensor DeviceCollectives::scratch(std::int64_t count, DType dtype) const {
  return at::empty({count}, at::TensorOptions().dtype(scalar_type(dtype)).device(device_));
}

void DeviceCollectives::copy_own(ConstBuffer from, std::int64_t at, Buffer to, std::int64_t to_at,
                                 std::int64_t count) const {
  if (count == 0) return;
  const at::Tensor source = bytes(from, at, count);
  const at::Tensor target = bytes(to, to_at, count);
  if (source.data_ptr() != target.data_ptr()) target.copy_(source);
}

DeviceCollectives::Started DeviceCollectives::start(const device::Exchange& exchange,
                                                    ConstBuffer from, ConstBuffer to) {
  Started started;
  if (exchange.empty()) return started;
  // As one group where the backend has such: alone, each message would wait for its other end.
  const bool grouped = backend_->supportsCoalescing();
  if (grouped) backend_->startCoalescing();
  for (const device::Piece& piece : exchange.recvs) {
    std::vector<at::Tensor> tensors = {bytes(to, piece.offset, piece.count)};
    started.push_back(backend_->recv(tensors, piece.peer, 0));
  }
  for (const device::Piece& piece : exchange.sends) {
    std::vector<at::Tensor> tensors = {bytes(from, piece.offset, piece.count)};
    started.push_back(backend_->send(tensors, piece.peer, 0));
  }
  if (grouped) started = {backend_->endCoalescing()};
  return started;
}

void DeviceCollectives::all_gather(ConstBuffer mine, Buffer all, const Parts& parts) {
  const std::int64_t offset = parts.offsets[index(rank_)];
  const device::GatherPlan plan = device::plan_all_gather(parts, rank_);
  if (!plan.one_call || backend_ == nullptr) {
    const Started started = start(plan.exchange, mine, all);
    copy_own(mine, 0, all, offset, mine.count);
    return wait(started);
  }
  at::Tensor whole = bytes(all, 0, parts.total);
  at::Tensor part = bytes(mine, 0, mine.count);
  wait({backend_->_allgather_base(whole, part)});
}

void DeviceCollectives::reduce_scatter(ConstBuffer all, Buffer mine, const Parts& parts,
                                       ReduceOp op) {
  const auto step =
      static_cast<std::int64_t>(std::max<std::size_t>(chunk_ / base::size_of(all.dtype), 1));
  const device::ReducePlan plan = device::plan_reduce_scatter(parts, rank_, step);
  const at::Tensor memory = scratch(plan.scratch, all.dtype);
  const ConstBuffer received{memory.data_ptr(), plan.scratch, all.dtype, all.device};
  Started now;
  if (!plan.rounds.empty()) now = start(plan.rounds.front().exchange, all, received);
  for (std::size_t r = 0; r < plan.rounds.size(); ++r) {
    const device::ReduceRound& round = plan.rounds[r];
    Started next;
    if (r + 1 < plan.rounds.size()) next = start(plan.rounds[r + 1].exchange, all, received);
    wait(now);
    if (round.count > 0) {
      std::vector<at::Tensor> addends;
      for (int from = 0; from < size_; ++from) {
        addends.push_back(
            elements(from == rank_ ? all : received, round.addends[index(from)], round.count));
      }
      combine(addends, elements(mine, round.offset, round.count), op);
    }
    now = std::move(next);
  }
}

void DeviceCollectives::reduce_whole(Buffer inout, ReduceOp op) {
  at::Tensor all = scratch(inout.count * size_, inout.dtype);
  const ConstBuffer gathered{all.data_ptr(), all.numel(), inout.dtype, inout.device};
  at::Tensor whole = bytes(gathered, 0, gathered.count);
  at::Tensor part = bytes(inout, 0, inout.count);
  wait({backend_->_allgather_base(whole, part)});
  std::vector<at::Tensor> addends;
  for (int rank = 0; rank < size_; ++rank) {
    addends.push_back(elements(gathered, rank * inout.count, inout.count));
  }
  combine(addends, elements(inout, 0, inout.count), op);
}

void DeviceCollectives::all_reduce(Buffer inout, ReduceOp op) {
  if (inout.count == 0 || backend_ == nullptr) return;
  if (bytes_of(inout.count, inout.dtype) <= kSmallReduction) return reduce_whole(inout, op);
  const auto block = static_cast<std::int64_t>(512 / base::size_of(inout.dtype));
  const Parts parts = device::cut_evenly(inout.count, size_, block);
  const Buffer mine{
      static_cast<std::byte*>(inout.data) + bytes_of(parts.offsets[index(rank_)], inout.dtype),
      parts.counts[index(rank_)], inout.dtype, inout.device};
  reduce_scatter(inout, mine, parts, op);
  all_gather(mine, inout, parts);
}

void DeviceCollectives::broadcast(Buffer inout, int root) {
  if (inout.count == 0 || backend_ == nullptr) return;
  std::vector<at::Tensor> tensors = {bytes(inout, 0, inout.count)};
  ::c10d::BroadcastOptions options;
  options.rootRank = root;
  wait({backend_->broadcast(tensors, options)});
}

void DeviceCollectives::all_to_all(ConstBuffer send, const Parts& send_parts, Buffer recv,
                                   const Parts& recv_parts) {
  const Started started = start(device::plan_all_to_all(send_parts, recv_parts, rank_), send, recv);
  copy_own(send, send_parts.offsets[index(rank_)], recv, recv_parts.offsets[index(rank_)],
           send_parts.counts[index(rank_)]);
  wait(started);
}

}  // namespace fullshard::comm::c10d
