// All of libfullshard_cuda.so: what the core cannot do without headers of CUDA.
#define USE_C10D_NCCL 1

#include <c10/cuda/CUDAFunctions.h>

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>

#include "comm/device/plugin.h"

namespace fullshard::comm::cuda {
namespace {

using Nccl = ::c10d::ProcessGroupNCCL;

std::string first_line(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

// Deadlines and deaths are watched by the group. Left to itself, c10d's NCCL ends the process from
// threads of its own when an operation fails or takes long; its constructor reads these.
void keep_the_process_alive() {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 1);
  ::setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 1);
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 1);
  ::setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", 1);
  ::setenv("TORCH_NCCL_BLOCKING_WAIT", "0", 1);
}

int count_devices(std::string& why) {
  keep_the_process_alive();
  try {
    return c10::cuda::device_count_ensure_non_zero();
  } catch (const std::exception& error) {
    why = first_line(error);
    return 0;
  }
}

void* connect_nccl(void* store, int rank, int size, int device, std::int64_t timeout_ms,
                   std::string& why) {
  try {
    const auto own =
        c10::intrusive_ptr<::c10d::Store>::reclaim_copy(static_cast<::c10d::Store*>(store));
    auto options = Nccl::Options::create();
    options->timeout = std::chrono::milliseconds(timeout_ms);
    auto backend = c10::make_intrusive<Nccl>(own, rank, size, std::move(options));
    const at::Device place(at::kCUDA, static_cast<at::DeviceIndex>(device));
    backend->setBoundDeviceId(place);
    backend->eagerConnectSingleDevice(place);
    return c10::intrusive_ptr<::c10d::Backend>(std::move(backend)).release();
  } catch (const std::exception& error) {
    why = first_line(error);
    return nullptr;
  }
}

constexpr device::Plugin kPlugin = {FULLSHARD_VERSION, TORCH_VERSION, count_devices, connect_nccl};

}  // namespace
}  // namespace fullshard::comm::cuda

extern "C" __attribute__((visibility("default"))) const fullshard::comm::device::Plugin*
fullshard_cuda_plugin() {
  return &fullshard::comm::cuda::kPlugin;
}
