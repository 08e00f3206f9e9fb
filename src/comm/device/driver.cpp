#include "comm/device/driver.h"

#include <dlfcn.h>

namespace fullshard::comm::device {

int count_gpus(const char* library) {
  void* driver = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);  // it cannot be unloaded once it runs
  if (driver == nullptr) return 0;
  // CUDA's driver API; both return 0 for success.
  const auto init = reinterpret_cast<int (*)(unsigned flags)>(::dlsym(driver, "cuInit"));
  const auto count_devices = reinterpret_cast<int (*)(int*)>(::dlsym(driver, "cuDeviceGetCount"));
  int count = 0;
  if (init == nullptr || count_devices == nullptr || init(0) != 0) return 0;
  return count_devices(&count) == 0 ? count : 0;
}

}  // namespace fullshard::comm::device
