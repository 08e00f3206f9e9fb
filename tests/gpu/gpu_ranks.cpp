#include <gtest/gtest.h>

#include "comm/ranks.h"
#include "comm/staged_group.h"
#include "fullshard/comm/c10d/gpus.h"

namespace fullshard::comm::testing {

std::vector<Backend> backends() { return {Backend::kNccl}; }

// Ranks are threads, each with a GPU of its own; the suites' buffers are copied there and back.
void run_ranks(Backend backend, int size, const std::function<void(World&)>& body,
               const CommOptions& options) {
  ASSERT_EQ(backend, Backend::kNccl) << "this test program has only GPUs";
  const auto store = rendezvous::Store::in_memory();
  const auto run = [&](World& host) {
    const GpuWorld gpus = with_gpus(host, store);
    const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(gpus.device));
    const auto staged = [&](const std::shared_ptr<Group>& group) {
      return std::make_shared<StagedGroup>(group, device, gpus.device);
    };
    World world(host, staged(gpus.world.mesh().all), staged(gpus.world.mesh().replicate));
    body(world);
  };
  try {
    run_as_threads(size, run, options);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
}

}  // namespace fullshard::comm::testing
