#pragma once

namespace fullshard::comm::device {

/// How many GPUs the CUDA driver shows to this process (CUDA_VISIBLE_DEVICES counts); 0 where there
/// is no driver. Needs neither the plugin nor CUDA's libraries, so it costs little where there is
/// no GPU. `library` is the driver's.
int count_gpus(const char* library = "libcuda.so.1");

}  // namespace fullshard::comm::device
