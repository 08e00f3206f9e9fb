// What only a real GPU can show; the suites of the collectives are linked in besides.

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/errors.h"
#include "fullshard/comm/c10d/gpus.h"

namespace fullshard::comm::testing {
namespace {

Buffer buffer_of(const at::Tensor& values) {
  return {values.data_ptr(), values.numel(), base::DType::kFloat32,
          values.is_cuda() ? values.get_device() : kHostMemory};
}

void run(int size, base::Duration timeout, const std::function<void(World&, int)>& body) {
  const auto store = rendezvous::Store::in_memory();
  CommOptions options;
  options.timeout = timeout;
  run_as_threads(
      size,
      [&](World& host) {
        GpuWorld gpus = with_gpus(host, store);
        body(gpus.world, gpus.device);
      },
      options);
}

at::TensorOptions on(int device) {
  return at::TensorOptions(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device)));
}

// An operation begins after what its caller had queued, and is done when its Work is.
void check_order(int size) {
  run(size, std::chrono::minutes(1), [](World& world, int device) {
    for (int round = 0; round < 20; ++round) {
      at::Tensor busy = at::rand({4000, 4000}, on(device));
      for (int i = 0; i < 10; ++i) busy = at::mm(busy, busy).clamp(0, 1);
      at::Tensor values = busy.flatten().zero_().add_(world.rank() + 1);  // behind the products
      world.group().all_reduce(buffer_of(values), ReduceOp::kSum, {"order", round}).wait();
      const double sum = world.size() * (world.size() + 1) / 2.0;
      EXPECT_EQ(values.min().item<float>(), sum);
      EXPECT_EQ(values.max().item<float>(), sum);
    }
  });
}

// Both sides of one group.
void check_mixed(int size) {
  run(size, std::chrono::minutes(1), [](World& world, int device) {
    const at::Tensor here = at::full({1000}, static_cast<float>(world.rank() + 1));
    const at::Tensor there = at::full({1000}, static_cast<float>(world.rank() + 2), on(device));
    Work first = world.group().all_reduce(buffer_of(there), ReduceOp::kMax, {});
    world.group().all_reduce(buffer_of(here), ReduceOp::kMax, {}).wait();
    first.wait();
    EXPECT_EQ(here.min().item<float>(), world.size());
    EXPECT_EQ(there.min().item<float>(), world.size() + 1);
  });
}

TEST(GpuCheck1, OperationsKeepTheOrderOfTheDevice) { check_order(1); }
TEST(GpuCheck2, OperationsKeepTheOrderOfTheDevice) { check_order(2); }
TEST(GpuCheck1, HostAndDeviceMemoryInOneGroup) { check_mixed(1); }
TEST(GpuCheck2, HostAndDeviceMemoryInOneGroup) { check_mixed(2); }

TEST(GpuCheck2, ARankThatDoesNotComeEndsInATimeoutAndTheProcessLives) {
  run(2, std::chrono::seconds(3), [](World& world, int device) {
    if (world.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(5));
      return;
    }
    const at::Tensor values = at::ones({1000}, on(device));
    const auto error = expect_error(base::ErrorCode::kTimeout, [&] {
      world.group().all_reduce(buffer_of(values), ReduceOp::kSum, {"late", 1}).wait();
    });
    EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 1 is missing"));
  });
}

TEST(GpuCheck1, MoreRanksThanGpusAreRefused) {
  const auto error = expect_error(base::ErrorCode::kConfiguration,
                                  [] { run(64, std::chrono::minutes(1), [](World&, int) {}); });
  EXPECT_THAT(error.what(), ::testing::HasSubstr("at most one rank a GPU"));
}

}  // namespace
}  // namespace fullshard::comm::testing
