#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/shared/control_block.h"

namespace fullshard::comm::shared {

/// "rank 2", "ranks 0, 1 and 3"; long lists are cut.
std::string name_ranks(std::span<const int> ranks);

/// What a rank last did in the group and how long ago, in words that follow its name.
std::string last_act(const Slot& slot);

/// Now, in the unit of Slot::changed_at.
std::int64_t now_ns();

}  // namespace fullshard::comm::shared
