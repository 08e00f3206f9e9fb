#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fullshard::layout {

/// The rank that owns each of several units that are not cut (Atom::kUnit): the largest first, each
/// to the rank that then has the least for its weight, the lowest of several.
///
/// `bytes` are the units' sizes, `loads` what every rank owns already. `weights` are as in
/// LayoutOptions; a rank of weight 0 gets nothing. The same on every rank that passes the same
/// input. No rank gets more than the mean plus the largest unit when weights are equal and nothing
/// is owned before.
std::vector<int> assign_owners(std::span<const std::int64_t> bytes, std::vector<std::int64_t> loads,
                               const std::vector<double>& weights = {});

}  // namespace fullshard::layout
