#include "comm/c10d/device_messages.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "comm/shared/arguments.h"

namespace fullshard::comm::c10d {
namespace {

using base::DType;
using shared::bytes_of;

at::Tensor view_of(const void* data, std::int64_t count, at::ScalarType type, c10::Device device) {
  return at::for_blob(const_cast<void*>(data), {count})
      .options(at::TensorOptions().dtype(type).device(device))
      .target_device(device)
      .make_tensor();
}

const std::byte* place(ConstBuffer buffer, std::int64_t offset) {
  return static_cast<const std::byte*>(buffer.data) + bytes_of(offset, buffer.dtype);
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

DeviceMessages::DeviceMessages(c10::intrusive_ptr<::c10d::Backend> backend, int rank, HostMap hosts,
                               c10::Device device)
    : backend_(std::move(backend)), rank_(rank), hosts_(std::move(hosts)), device_(device) {
  for (int other = 0; other < hosts_.size(); ++other) {
    elsewhere_.push_back(hosts_.host_of(other) != hosts_.host_of(rank));
  }
}

at::Tensor DeviceMessages::elements(ConstBuffer buffer, std::int64_t offset,
                                    std::int64_t count) const {
  return view_of(place(buffer, offset), count, scalar_type(buffer.dtype), device_);
}

at::Tensor DeviceMessages::bytes(ConstBuffer buffer, std::int64_t offset,
                                 std::int64_t count) const {
  return view_of(place(buffer, offset), static_cast<std::int64_t>(bytes_of(count, buffer.dtype)),
                 at::kByte, device_);
}

at::Tensor DeviceMessages::allocate(std::int64_t count, DType dtype) const {
  return at::empty({count}, at::TensorOptions().dtype(scalar_type(dtype)).device(device_));
}

void DeviceMessages::copy(ConstBuffer from, std::int64_t at, ConstBuffer to, std::int64_t to_at,
                          std::int64_t count) const {
  if (count == 0 || place(from, at) == place(to, to_at)) return;
  bytes(to, to_at, count).copy_(bytes(from, at, count));
}

void DeviceMessages::recv(const Route& route, Started& started) {
  for (const device::Piece& piece : route.exchange.recvs) {
    std::vector<at::Tensor> tensors = {bytes(route.to, piece.offset, piece.count)};
    started.push_back(backend_->recv(tensors, piece.peer, 0));
  }
}

void DeviceMessages::send(const Route& route, Started& started) {
  for (const device::Piece& piece : route.exchange.sends) {
    std::vector<at::Tensor> tensors = {bytes(route.from, piece.offset, piece.count)};
    if (elsewhere_[static_cast<std::size_t>(piece.peer)]) {
      bytes_between_hosts_ += tensors.front().numel();
    }
    started.push_back(backend_->send(tensors, piece.peer, 0));
  }
}

DeviceMessages::Started DeviceMessages::start(std::initializer_list<Route> routes) {
  Started started;
  bool empty = true;
  for (const Route& route : routes) empty = empty && route.exchange.empty();
  if (empty) return started;
  // Alone, each message would wait for its other end.
  const bool grouped = backend_->supportsCoalescing();
  if (grouped) backend_->startCoalescing();
  for (const Route& route : routes) recv(route, started);
  for (const Route& route : routes) send(route, started);
  if (grouped) started = {backend_->endCoalescing()};
  return started;
}

void DeviceMessages::wait(const Started& started) {
  for (const auto& work : started) {
    if (work) work->wait();
  }
}

void DeviceMessages::all_gather_equal(ConstBuffer mine, ConstBuffer all) {
  at::Tensor whole = bytes(all, 0, all.count);
  at::Tensor part = bytes(mine, 0, mine.count);
  bytes_between_hosts_ += std::count(elsewhere_.begin(), elsewhere_.end(), true) * part.numel();
  wait({backend_->_allgather_base(whole, part)});
}

void DeviceMessages::broadcast(Buffer inout, int root) {
  std::vector<at::Tensor> tensors = {bytes(inout, 0, inout.count)};
  ::c10d::BroadcastOptions options;
  options.rootRank = root;
  if (rank_ == root) bytes_between_hosts_ += (hosts_.hosts() - 1) * tensors.front().numel();
  wait({backend_->broadcast(tensors, options)});
}

}  // namespace fullshard::comm::c10d
