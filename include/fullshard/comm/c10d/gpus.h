#pragma once

#include <optional>

#include "fullshard/comm/types.h"
#include "fullshard/comm/world.h"
#include "fullshard/rendezvous/store.h"

namespace fullshard::comm {

/// A world whose groups also move memory of GPUs.
struct GpuWorld {
  World world;
  int device;  ///< this rank's GPU: what Buffer::device says for memory on it; kHostMemory for none
};

/// Collective over `world`: the same ranks with groups that send buffers in host memory where they
/// went before, and buffers on the rank's GPU over NCCL. Loads libfullshard_cuda.so. `store` is one
/// that all ranks see, under keys used for nothing else. The GPU is `device`, else the one of the
/// rank's number on its host.
///
/// Deadlines, deaths and mismatches of operations on GPUs are found by groups of the host, as for
/// other operations, and end in the same errors; c10d's NCCL is told to leave the process alone
/// when something fails, in the environment (TORCH_NCCL_ASYNC_ERROR_HANDLING and four more).
/// Work::wait returns when the GPU has done the operation.
///
/// Throws base::Error, and tells the other ranks: kFile and kConfiguration when the plugin is not
/// there or of another build, kConfiguration when there is no GPU or none for this rank, kSystem
/// when NCCL cannot connect, kTimeout when it has not in time, kPeerLost when a rank is lost
/// meanwhile. A connection that NCCL then does not give up is left behind, and may still use the
/// store.
GpuWorld with_gpus(const World& world, const rendezvous::Store& store,
                   std::optional<int> device = std::nullopt);

/// The same where GPUs are there; where no rank sees one, `world` itself, and nothing is loaded.
/// Throws also kConfiguration naming the ranks that see none, where others do.
GpuWorld with_gpus_if_there(const World& world, const rendezvous::Store& store,
                            std::optional<int> device = std::nullopt);

}  // namespace fullshard::comm
