#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fullshard/state/sharded_tensor.h"

namespace fullshard::optim {

/// Overrides for the parameters it takes: those whose name matches the pattern and whose whole
/// shape has at most max_dimensions. Of several rules the first that takes a parameter decides
/// alone.
struct GroupRule {
  std::string pattern;                      ///< `*` any run of characters, `?` any one
  std::optional<double> weight_decay = {};  ///< absent: the optimizer's own
  std::optional<double> lr_scale = {};      ///< factor on the learning rate; absent: 1
  std::int64_t max_dimensions = std::numeric_limits<std::int64_t>::max();
  bool must_match = true;  ///< whether a pattern that matches no name is an error
};

/// No weight decay on norms, biases and everything of fewer than two dimensions. None of them must
/// match.
std::vector<GroupRule> default_no_decay_rules();

/// For each parameter the index of the rule that takes it, or rules.size() when none does.
/// The same on all ranks: it looks at names and whole shapes, never at what this rank holds.
/// Throws kConfiguration for a pattern that matches no name, with the nearest name.
std::vector<std::size_t> assign_groups(std::span<const state::ShardedTensor> parameters,
                                       std::span<const GroupRule> rules);

}  // namespace fullshard::optim
