#pragma once

namespace fullshard::shard {

class Engine;

/// Warns, on rank 0, when sharding cannot save memory because the whole model is one unit.
void warn_if_one_unit(const Engine& engine);

}  // namespace fullshard::shard
