// A plugin for the tests of the loader: what it claims to be is given when it is compiled.
#include "comm/device/plugin.h"

#ifndef NO_SYMBOL
namespace {

int count_devices(std::string& why) {
  why = "a plugin for tests has none";
  return 0;
}

constexpr fullshard::comm::device::Plugin kPlugin = {FULLSHARD_VERSION, TORCH, count_devices,
                                                     nullptr};

}  // namespace

extern "C" const fullshard::comm::device::Plugin* fullshard_cuda_plugin() { return &kPlugin; }
#endif
