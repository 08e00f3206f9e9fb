#pragma once

#include "fullshard/shard/sharded_module.h"
#include "shard/engine.h"

namespace fullshard::shard {

/// See ShardedModule::full_state_dict.
StateDict gather_state(Engine& engine, bool rank0_only);

/// See ShardedModule::load_state_dict.
LoadReport scatter_state(Engine& engine, const StateDict& state, bool strict);

}  // namespace fullshard::shard
