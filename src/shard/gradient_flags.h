#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fullshard/comm/group.h"
#include "shard/flat_unit.h"

namespace fullshard::shard {

/// Which parameters of a unit have a gradient: 1 or 0 each.
using GradientFlags = std::vector<std::uint8_t>;

struct UnitFlags {
  std::size_t unit;
  GradientFlags flags;

  bool any() const;
};

/// Whether any parameter of the unit is trainable now.
bool wants_gradients(const FlatUnit& unit);

/// Collective over each of `groups`: replaces the flags by those of all ranks together. All ranks
/// pass the same units. Errors name them, and `round`.
void join_flags(std::span<comm::Group* const> groups, const std::vector<FlatUnit>& units,
                std::vector<UnitFlags>& flags, std::int64_t round);

}  // namespace fullshard::shard
