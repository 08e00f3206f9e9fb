#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fullshard/layout/parameter.h"
#include "fullshard/planner/model.h"

namespace fullshard::planner {

/// Where the parameters whose names match may be cut: a shard::ParameterRule in words.
struct AtomRule {
  std::string pattern;
  layout::Atom atom = layout::Atom::kElement;
  std::int64_t group = 1;
};

/// How attention is divided between heads, and MLPs along their hidden features.
struct HeadProposal {
  std::int64_t heads_per_group = 1;
  std::vector<AtomRule> rules;
  /// Of such a unit at the given ranks: the largest slice in mean slices; 1 is even.
  double largest_share = 1;
};

/// The rules of dividing by `heads_per_group` heads. Queries, keys and values lie in one matrix
/// [3 dim, dim], head after head of each, so a group of heads is a run of rows that a cut does not
/// enter; where it divides the heads, none has rows of two of the three. The projection behind
/// takes heads as columns. Of an MLP the rows of the first matrix and the columns of the second
/// belong to hidden features.
std::vector<AtomRule> head_rules(const ModelShape& shape, std::int64_t heads_per_group);

/// Picks the heads of a group for `ranks` ranks: the most from 8 down to 4 that divide the heads
/// and let no rank have more than 1.25 times its share of a unit, which is a block, or with
/// `attention_alone` its attention; else fewer, down to one. Where none of 4 to 8 divides the
/// heads, groups of 4 come first, of which some have heads of two matrices.
HeadProposal propose_heads(const ModelShape& shape, int ranks, bool attention_alone = false);

/// Gives each parameter what the first rule says that matches its name.
void apply_rules(const std::vector<AtomRule>& rules,
                 std::vector<layout::ParameterSpec>& parameters);

}  // namespace fullshard::planner
