#pragma once

#include <string>

namespace fullshard::shard {

class Engine;

/// See ShardedModule::describe.
std::string describe(const Engine& engine);

}  // namespace fullshard::shard
