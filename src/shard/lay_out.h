#pragma once

#include <vector>

#include "fullshard/comm/mesh.h"
#include "fullshard/shard/options.h"
#include "shard/flat_unit.h"

namespace fullshard::shard {

/// Flattens the units that discovery found and cuts them over the mesh's shard group. Memory comes
/// later. Throws base::Error(kInvalidArgument) for weights or rules that do not fit.
std::vector<FlatUnit> lay_out(std::vector<FoundUnit> found, const FullyShardOptions& options,
                              const comm::Mesh& mesh);

}  // namespace fullshard::shard
