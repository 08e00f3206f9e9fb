#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/shared/control_block.h"

namespace fullshard::comm::shared {

/// Who made which call: "ranks 0 and 2: barrier; rank 1: all_gather (...)". `calls` holds one entry
/// a rank, with the world's number of the rank.
std::string describe_calls(std::span<const std::pair<int, OperationRecord>> calls);

/// What a rank last did in the group and how long ago, in words that follow its name.
std::string last_act(const Slot& slot);

/// Now, in the unit of Slot::changed_at.
std::int64_t now_ns();

}  // namespace fullshard::comm::shared
