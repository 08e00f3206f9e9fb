#pragma once

#include <cstdint>
#include <string>

namespace fullshard::comm::device {

/// What libfullshard_cuda.so offers; its only symbol returns one. The plugin and who loads it are
/// built from this header, which the loader makes sure of by `version`, the first member in every
/// version. Nothing is thrown across: errors are texts. Objects of torch go as void, so that the
/// loader needs no torch.
struct Plugin {
  const char* version;  ///< of the fullshard that it was built with
  const char* torch;    ///< version of the libtorch that it was built against

  /// How many GPUs this process may use; 0 with the reason in `why`. Once per process is enough:
  /// it also reads what the plugin sets in the environment of the backend.
  int (*count_devices)(std::string& why);

  /// A new c10d::Backend of `size` ranks that meet in `store` (a c10d::Store, borrowed), this one
  /// as `rank` with the GPU `device`; the caller takes over its one reference. Collective.
  /// `timeout_ms` bounds its own waits, at their end. Null with the reason in `why`.
  void* (*connect_nccl)(void* store, int rank, int size, int device, std::int64_t timeout_ms,
                        std::string& why);
};

/// Name and type of the symbol.
inline constexpr const char* kPluginSymbol = "fullshard_cuda_plugin";
using PluginEntry = const Plugin* (*)();

}  // namespace fullshard::comm::device
