#include "comm/ranks.h"

#include <gtest/gtest.h>

namespace fullshard::comm::testing {

std::string name_of(Backend backend) {
  switch (backend) {
    case Backend::kLocal: return "Local";
    case Backend::kShmThreads: return "ShmThreads";
    case Backend::kShmProcesses: return "ShmProcesses";
  }
  return "Unknown";
}

std::vector<Backend> backends() { return {Backend::kLocal}; }

void run_ranks(Backend /*backend*/, int size, const std::function<void(World&)>& body,
               const CommOptions& options) {
  try {
    run_as_threads(size, body, options);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
}

}  // namespace fullshard::comm::testing
