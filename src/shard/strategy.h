#pragma once

#include <string_view>

#include "fullshard/residency/unit_pager.h"
#include "fullshard/shard/options.h"

namespace fullshard::shard {

/// The enumerator's name.
std::string_view to_string(ShardingStrategy strategy);

/// How long units of this strategy stay gathered.
residency::Stay stay_of(ShardingStrategy strategy);

}  // namespace fullshard::shard
