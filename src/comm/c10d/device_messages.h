#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "comm/device/plan.h"
#include "comm/host_map.h"
#include "fullshard/comm/types.h"

namespace fullshard::comm::c10d {

/// The messages of one rank's group over a backend of c10d for device memory, and views of that
/// memory as tensors. A call returns when the current stream has been given its messages; what the
/// backend throws is passed on.
class DeviceMessages {
 public:
  using Started = std::vector<c10::intrusive_ptr<::c10d::Work>>;

  /// What an exchange moves, and between which buffers.
  struct Route {
    const device::Exchange& exchange;
    ConstBuffer from;
    ConstBuffer to;
  };

  /// `backend` may be null for a group of one rank, which has no messages.
  DeviceMessages(c10::intrusive_ptr<::c10d::Backend> backend, int rank, HostMap hosts,
                 c10::Device device);

  /// Begins all of the routes at the same time, as one group of calls where the backend has such.
  Started start(std::initializer_list<Route> routes);
  /// The current stream goes on after them.
  static void wait(const Started& started);

  /// The backend's own calls: parts of equal size, and one rank's buffer to all.
  void all_gather_equal(ConstBuffer mine, ConstBuffer all);
  void broadcast(Buffer inout, int root);

  /// `count` elements of a buffer from element `offset` on: as they are, and as bytes.
  at::Tensor elements(ConstBuffer buffer, std::int64_t offset, std::int64_t count) const;
  at::Tensor bytes(ConstBuffer buffer, std::int64_t offset, std::int64_t count) const;

  /// Copies `count` elements, unless they are in place already.
  void copy(ConstBuffer from, std::int64_t at, ConstBuffer to, std::int64_t to_at,
            std::int64_t count) const;
  at::Tensor allocate(std::int64_t count, base::DType dtype) const;

  bool alone() const { return backend_ == nullptr; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(elsewhere_.size()); }
  const HostMap& hosts() const { return hosts_; }
  /// Sent by this rank to ranks on other hosts. Any thread may call. Of the backend's own calls it
  /// is what the other hosts need of this rank, whichever way the backend goes.
  std::int64_t bytes_between_hosts() const { return bytes_between_hosts_; }

 private:
  void recv(const Route& route, Started& started);
  void send(const Route& route, Started& started);

  c10::intrusive_ptr<::c10d::Backend> backend_;
  int rank_;
  HostMap hosts_;
  c10::Device device_;
  std::vector<bool> elsewhere_;  // by rank, whether it is on another host
  std::atomic<std::int64_t> bytes_between_hosts_ = 0;
};

/// Memory on the device for a while.
struct Scratch {
  Scratch(const DeviceMessages& messages, std::int64_t count, base::DType dtype, int device)
      : memory(messages.allocate(count, dtype)), buffer{memory.data_ptr(), count, dtype, device} {}

  at::Tensor memory;
  Buffer buffer;
};

/// The type of torch with the same elements; bool as bytes of 0 and 1.
at::ScalarType scalar_type(base::DType dtype);

}  // namespace fullshard::comm::c10d
