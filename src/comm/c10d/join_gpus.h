#pragma once

#include "comm/device/plugin.h"
#include "fullshard/comm/c10d/gpus.h"

namespace fullshard::comm::c10d {

/// The GPU that this rank takes of those which the plugin finds; `wanted` if that is there. Throws
/// base::Error kConfiguration when there is none for it.
int choose_gpu(const device::Plugin& plugin, const World& world, std::optional<int> wanted);

/// with_gpus() by a plugin that is loaded already.
GpuWorld join_gpus(const device::Plugin& plugin, const World& world, const rendezvous::Store& store,
                   std::optional<int> wanted);

/// Whether all ranks see GPUs, each passing how many it sees; false where none does. Throws as
/// with_gpus_if_there() where some do.
bool all_see_gpus(const World& world, int visible);

}  // namespace fullshard::comm::c10d
