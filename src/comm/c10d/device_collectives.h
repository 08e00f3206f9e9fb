#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/c10d/device_messages.h"
#include "comm/shared/arguments.h"

namespace fullshard::comm::c10d {

/// The collectives of one rank's group over a backend of c10d for device memory, of whose calls
/// those are used that only move bytes: all_gather of equal parts, broadcast, and send and recv in
/// groups. Sums are made here, by operators of ATen on the device, fp16 and bf16 in fp32, means by
/// a division, in the order of the groups of host memory: so the bits are theirs.
///
/// A call returns when the current stream has been given all of it; all ranks make the same calls.
/// What the backend throws is passed on.
class DeviceCollectives {
 public:
  /// `chunk`: see the functions that make one.
  DeviceCollectives(DeviceMessages& messages, std::size_t chunk)
      : messages_(messages), chunk_(chunk) {}
  virtual ~DeviceCollectives() = default;

  /// `mine` may be the own part of `all`, here and in reduce_scatter.
  virtual void all_gather(ConstBuffer mine, Buffer all, const shared::Parts& parts) = 0;
  virtual void reduce_scatter(ConstBuffer all, Buffer mine, const shared::Parts& parts,
                              ReduceOp op) = 0;
  virtual void all_reduce(Buffer inout, ReduceOp op);
  void broadcast(Buffer inout, int root);
  void all_to_all(ConstBuffer send, const shared::Parts& send_parts, Buffer recv,
                  const shared::Parts& recv_parts);

 protected:
  DeviceMessages& messages() { return messages_; }
  std::size_t chunk() const { return chunk_; }

  /// What `sum` says, into `to`: the addend `own` lies in `of_own`, the rest in `others`. A mean is
  /// one of `ranks` ranks.
  void add_up(const device::Sum& sum, int own, ConstBuffer of_own, ConstBuffer others,
              ConstBuffer to, ReduceOp op, int ranks);

 private:
  DeviceMessages& messages_;
  std::size_t chunk_;
};

/// The same way between any two ranks. `chunk` is how many bytes come from each other rank at a
/// time in reductions.
std::unique_ptr<DeviceCollectives> make_flat_device_collectives(DeviceMessages& messages,
                                                                std::size_t chunk);

/// For ranks on several hosts, several on one: inside the hosts and between them. `chunk` is how
/// many bytes of each part are on their way at a time.
std::unique_ptr<DeviceCollectives> make_hierarchical_device_collectives(DeviceMessages& messages,
                                                                        std::size_t chunk);

/// out[i] = op over the addends' [i], in their order; fp16 and bf16 in fp32, rounded once to the
/// type of `out`; a mean divides by `ranks`. `out` may be one of them.
void combine(const std::vector<at::Tensor>& addends, at::Tensor out, ReduceOp op, int ranks);

}  // namespace fullshard::comm::c10d
