#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fullshard/comm/world.h"

namespace fullshard::comm::testing {

/// How the ranks of a test live and what connects them.
enum class Backend {
  kLocal,
  kShmThreads,
  kShmProcesses,
  kGlooThreads,
  kGlooProcesses,
  kHostsThreads,  ///< over several hosts, as hosts_of() says
  kHostsProcesses,
  kDeviceStandIn,       ///< the CPU as a device, see device_ranks.h
  kDeviceHostsStandIn,  ///< the same over several hosts
  kMixedStandIn,        ///< the CPU as a device beside host memory, in one group
  kNccl,                ///< GPUs, see tests/gpu
};

inline std::string name_of(Backend backend) {
  switch (backend) {
    case Backend::kLocal: return "Local";
    case Backend::kShmThreads: return "ShmThreads";
    case Backend::kShmProcesses: return "ShmProcesses";
    case Backend::kGlooThreads: return "GlooThreads";
    case Backend::kGlooProcesses: return "GlooProcesses";
    case Backend::kHostsThreads: return "HostsThreads";
    case Backend::kHostsProcesses: return "HostsProcesses";
    case Backend::kDeviceStandIn: return "DeviceStandIn";
    case Backend::kDeviceHostsStandIn: return "DeviceHostsStandIn";
    case Backend::kMixedStandIn: return "MixedStandIn";
    case Backend::kNccl: return "Nccl";
  }
  return "Unknown";
}

/// By rank, the host that it is on: all on one, but for backends over several hosts, where hosts
/// have different numbers of ranks, and some worlds have them in turn rather than one after the
/// other.
inline std::vector<int> hosts_of(Backend backend, int size) {
  const bool several = backend == Backend::kHostsThreads || backend == Backend::kHostsProcesses ||
                       backend == Backend::kDeviceHostsStandIn;
  if (!several || size == 1) return std::vector<int>(static_cast<std::size_t>(size), 0);
  switch (size) {
    case 2: return {0, 0};  // no other host, but the way of going about it
    case 3: return {0, 0, 1};
    case 4: return {0, 0, 1, 1};
    case 5: return {0, 1, 0, 1, 0};
    case 6: return {0, 0, 0, 0, 1, 2};
    case 7: return {0, 1, 2, 0, 0, 1, 1};
    case 8: return {0, 0, 0, 1, 1, 2, 2, 2};
    default: break;
  }
  std::vector<int> hosts;
  for (int rank = 0; rank < size; ++rank) hosts.push_back(rank * 3 / size);
  return hosts;
}

// What follows exists twice, for test programs without libtorch (ranks.cpp: local and shm) and for
// those with it (gloo_ranks.cpp: Gloo); the tests in between are the same sources.

/// Every backend that the test program can run: under ThreadSanitizer only ranks that are threads,
/// for it cannot follow forks. Of memory that is mapped twice it sees what each mapping does by
/// itself; races in the protocol show where ranks have one memory.
std::vector<Backend> backends();

/// Runs `body` once a rank and returns when all ranks have ended. Failed expectations of any rank,
/// and exceptions that leave `body`, fail the test.
void run_ranks(Backend backend, int size, const std::function<void(World&)>& body,
               const CommOptions& options = {});

/// The same for ranks that are processes, of which `victim` need not end well, nor at all: it is
/// killed when the others have ended.
void run_ranks_but(int victim, Backend backend, int size, const std::function<void(World&)>& body,
                   const CommOptions& options = {});

}  // namespace fullshard::comm::testing
