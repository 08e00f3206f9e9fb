#pragma once

#include "fullshard/comm/mesh.h"
#include "fullshard/shard/options.h"

namespace fullshard::shard {

/// Throws base::Error(kInvalidArgument) for options that are wrong by themselves or on this mesh.
/// Those that need the model's units are checked where they are used.
void check_options(const FullyShardOptions& options, const comm::Mesh& mesh);

}  // namespace fullshard::shard
