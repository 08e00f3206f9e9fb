#pragma once

#include <string>
#include <vector>

#include "fullshard/residency/unit_uses.h"
#include "shard/flat_unit.h"

namespace fullshard::shard {

/// What this rank has used, in words that follow an error about ranks that made different calls:
/// together, those of all ranks tell which unit was skipped, or used out of order, and by whom.
/// Empty where it has used nothing.
std::string account_of(const residency::UnitUses& uses, const std::vector<FlatUnit>& units,
                       int rank);

}  // namespace fullshard::shard
