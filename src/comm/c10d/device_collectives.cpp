#include "comm/c10d/device_collectives.h"

#include <ATen/Functions.h>

namespace fullshard::comm::c10d {
namespace {

using shared::Parts;

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

bool is_power_of_two(int n) { return (n & (n - 1)) == 0; }

// A scalar divisor would be turned into a factor on some devices, which rounds differently.
void divide(at::Tensor& sum, int n) {
  if (is_power_of_two(n)) {
    sum.mul_(1.0 / n);
  } else {
    sum.div_(at::full({1}, static_cast<double>(n), sum.options()));
  }
}

}  // namespace

void combine(const std::vector<at::Tensor>& addends, at::Tensor out, ReduceOp op, int ranks) {
  const at::ScalarType type = addends.front().scalar_type();
  const bool half = type == at::kHalf || type == at::kBFloat16;
  const bool mean = op == ReduceOp::kMean && ranks > 1;
  if (addends.size() == 1 && !mean) {
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
  if (mean) divide(result, ranks);
  out.copy_(result);
}

void DeviceCollectives::add_up(const device::Sum& sum, int own, ConstBuffer of_own,
                               ConstBuffer others, ConstBuffer to, ReduceOp op, int ranks) {
  if (sum.count == 0) return;
  std::vector<at::Tensor> addends;
  for (std::size_t i = 0; i < sum.addends.size(); ++i) {
    addends.push_back(
        messages_.elements(i == index(own) ? of_own : others, sum.addends[i], sum.count));
  }
  combine(addends, messages_.elements(to, sum.offset, sum.count), op, ranks);
}

void DeviceCollectives::all_reduce(Buffer inout, ReduceOp op) {
  if (inout.count == 0 || messages_.alone()) return;
  const auto block = static_cast<std::int64_t>(512 / base::size_of(inout.dtype));
  const Parts parts = device::cut_evenly(inout.count, messages_.size(), block);
  const int rank = messages_.rank();
  const std::int64_t offset = parts.offsets[index(rank)];
  const Buffer mine{static_cast<std::byte*>(inout.data) + shared::bytes_of(offset, inout.dtype),
                    parts.counts[index(rank)], inout.dtype, inout.device};
  reduce_scatter(inout, mine, parts, op);
  all_gather(mine, inout, parts);
}

void DeviceCollectives::broadcast(Buffer inout, int root) {
  if (inout.count == 0 || messages_.alone()) return;
  messages_.broadcast(inout, root);
}

void DeviceCollectives::all_to_all(ConstBuffer send, const Parts& send_parts, Buffer recv,
                                   const Parts& recv_parts) {
  const int rank = messages_.rank();
  const device::Exchange exchange = device::plan_all_to_all(send_parts, recv_parts, rank);
  const auto started = messages_.start({{exchange, send, recv}});
  messages_.copy(send, send_parts.offsets[index(rank)], recv, recv_parts.offsets[index(rank)],
                 send_parts.counts[index(rank)]);
  DeviceMessages::wait(started);
}

}  // namespace fullshard::comm::c10d
