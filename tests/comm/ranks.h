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
  kDeviceStandIn,  ///< the CPU as a device, see device_ranks.h
  kNccl,           ///< GPUs, see tests/gpu
};

inline std::string name_of(Backend backend) {
  switch (backend) {
    case Backend::kLocal: return "Local";
    case Backend::kShmThreads: return "ShmThreads";
    case Backend::kShmProcesses: return "ShmProcesses";
    case Backend::kGlooThreads: return "GlooThreads";
    case Backend::kGlooProcesses: return "GlooProcesses";
    case Backend::kDeviceStandIn: return "DeviceStandIn";
    case Backend::kNccl: return "Nccl";
  }
  return "Unknown";
}

// What follows exists twice, for test programs without libtorch (ranks.cpp: local and shm) and for
// those with it (gloo_ranks.cpp: Gloo); the tests in between are the same sources.

/// Every backend that the test program can run: under ThreadSanitizer only the ranks that are
/// threads of one memory, for it can follow neither forks nor memory that is mapped twice.
std::vector<Backend> backends();

/// Runs `body` once a rank and returns when all ranks have ended. Failed expectations of any rank,
/// and exceptions that leave `body`, fail the test.
void run_ranks(Backend backend, int size, const std::function<void(World&)>& body,
               const CommOptions& options = {});

}  // namespace fullshard::comm::testing
