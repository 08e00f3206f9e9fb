#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdint>
#include <vector>

#include "comm/device/plan.h"
#include "comm/shared/arguments.h"
#include "fullshard/comm/types.h"

namespace fullshard::comm::c10d {

/// The collectives of one rank's group over a backend of c10d for device memory, of whose calls it
/// uses those that only move bytes: all_gather of equal parts, broadcast, and send and recv in
/// groups. Sums are made here, by operators of ATen on the device: in the order of the ranks, fp16
/// and bf16 in fp32, means by a division, so that the bits are those of every other group.
///
/// A call returns when the current stream has been given all of it; all ranks make the same calls.
/// What the backend throws is passed on.
class DeviceCollectives {
 public:
  /// `chunk` is how many bytes come from each other rank at a time in reductions. `backend` may be
  /// null for a group of one rank, which moves nothing.
  DeviceCollectives(c10::intrusive_ptr<::c10d::Backend> backend, int rank, int size,
                    c10::Device device, std::size_t chunk);

  /// `mine` may be the own part of `all`, here and in reduce_scatter.
  void all_gather(ConstBuffer mine, Buffer all, const shared::Parts& parts);
  void reduce_scatter(ConstBuffer all, Buffer mine, const shared::Parts& parts, ReduceOp op);
  void all_reduce(Buffer inout, ReduceOp op);
  void broadcast(Buffer inout, int root);
  void all_to_all(ConstBuffer send, const shared::Parts& send_parts, Buffer recv,
                  const shared::Parts& recv_parts);

 private:
  using Started = std::vector<c10::intrusive_ptr<::c10d::Work>>;

  /// `count` elements of a buffer from element `offset` on: as they are, and as bytes.
  at::Tensor elements(ConstBuffer buffer, std::int64_t offset, std::int64_t count) const;
  at::Tensor bytes(ConstBuffer buffer, std::int64_t offset, std::int64_t count) const;

  Started start(const device::Exchange& exchange, ConstBuffer from, ConstBuffer to);
  void reduce_whole(Buffer inout, ReduceOp op);
  void copy_own(ConstBuffer from, std::int64_t at, Buffer to, std::int64_t to_at,
                std::int64_t count) const;
  at::Tensor scratch(std::int64_t count, base::DType dtype) const;

  c10::intrusive_ptr<::c10d::Backend> backend_;
  int rank_;
  int size_;
  c10::Device device_;
  std::size_t chunk_;
};

/// out[i] = op over the addends' [i], in their order; fp16 and bf16 in fp32, rounded once. A single
/// addend is copied. `out` may be one of them.
void combine(const std::vector<at::Tensor>& addends, at::Tensor out, ReduceOp op);

/// The type of torch with the same elements; bool as bytes of 0 and 1.
at::ScalarType scalar_type(base::DType dtype);

}  // namespace fullshard::comm::c10d
