#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/c10d/device_group.h"
#include "comm/threads_backend.h"
#include "comm/values.h"
#include "fullshard/comm/world.h"

namespace fullshard::comm::testing {

/// Groups of devices that are the CPU, for ranks that are threads: ThreadsBackend moves their data,
/// the host's side is a world of threads. Shared by all ranks.
class StandIns {
 public:
  /// A rank's group of all ranks. Collective.
  std::shared_ptr<Group> make_group(World& world);

  /// Where the messages of the n-th group that was made lie.
  Hub& hub(std::size_t n);

 private:
  std::shared_ptr<Hub> join(const rendezvous::Store& store, int rank);

  rendezvous::Store store_ = rendezvous::Store::in_memory();
  std::mutex mutex_;  // guards what follows
  std::vector<std::shared_ptr<Hub>> hubs_;
};

/// A rank's group of all ranks, whose devices are the CPU and connected by `connect`. Collective.
std::shared_ptr<Group> make_device_group(World& world, const rendezvous::Store& store,
                                         const c10d::ConnectDevices& connect);

/// The memory of `values` as that of device 0.
inline Buffer on_device(Values& values) {
  Buffer buffer = values.buffer();
  buffer.device = 0;
  return buffer;
}

/// Runs `body` once a rank, each on the host of its entry, and returns when all have ended.
void run_hosts_as_threads(const std::vector<int>& hosts, const std::function<void(World&)>& body,
                          const CommOptions& options = {});

}  // namespace fullshard::comm::testing
