#include "fullshard/planner/heads.h"

#include <algorithm>

#include "fullshard/base/text.h"
#include "fullshard/layout/unit_layout.h"

namespace fullshard::planner {
namespace {

constexpr std::int64_t kFewestHeads = 4;  // of a group, where ranks allow it
constexpr std::int64_t kMostHeads = 8;
constexpr double kLargestShare = 1.25;

// What to try, best first.
std::vector<std::int64_t> group_sizes(std::int64_t heads) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = std::min(kMostHeads, heads); size >= 1; --size) {
    if (heads % size == 0) sizes.push_back(size);
  }
  if (heads >= kFewestHeads && sizes.front() < kFewestHeads) {
    sizes.insert(sizes.begin(), kFewestHeads);
  }
  return sizes;
}

std::vector<layout::ParameterSpec> parameters_of_unit(ModelShape shape, bool attention_alone) {
  std::vector<layout::ParameterSpec> parameters;
  shape.layers = 1;
  for (const Stage& stage : stages_of(shape)) {
    if (stage.block < 0 || (attention_alone && !parameters.empty())) continue;
    parameters.insert(parameters.end(), stage.parameters.begin(), stage.parameters.end());
  }
  return parameters;
}

double largest_share_of(std::vector<layout::ParameterSpec> unit, const std::vector<AtomRule>& rules,
                        int ranks) {
  apply_rules(rules, unit);
  const auto layout = layout::UnitLayout::make("unit", std::move(unit), {.world = ranks});
  return static_cast<double>(layout.max_slice_size()) * ranks /
         static_cast<double>(layout.flat_size());
}

}  // namespace

std::vector<AtomRule> head_rules(const ModelShape& shape, std::int64_t heads_per_group) {
  const std::int64_t group = heads_per_group * (shape.dim / shape.heads);
  const bool decodes = shape.kind == ModelKind::kDecoder;
  return {{decodes ? "*.attention.qkv.*" : "*.in_proj_*", layout::Atom::kRow, group},
          {decodes ? "*.attention.projection.weight" : "*.out_proj.weight", layout::Atom::kColumn,
           group},
          {decodes ? "*.mlp.up.*" : "*.mlp.0.*", layout::Atom::kRow, 1},
          {decodes ? "*.mlp.projection.weight" : "*.mlp.3.weight", layout::Atom::kColumn, 1}};
}

HeadProposal propose_heads(const ModelShape& shape, int ranks, bool attention_alone) {
  const std::vector<layout::ParameterSpec> unit = parameters_of_unit(shape, attention_alone);
  HeadProposal proposal;
  for (const std::int64_t heads : group_sizes(shape.heads)) {
    proposal.heads_per_group = heads;
    proposal.rules = head_rules(shape, heads);
    proposal.largest_share = largest_share_of(unit, proposal.rules, ranks);
    if (proposal.largest_share <= kLargestShare) break;
  }
  return proposal;
}

void apply_rules(const std::vector<AtomRule>& rules,
                 std::vector<layout::ParameterSpec>& parameters) {
  for (layout::ParameterSpec& parameter : parameters) {
    const auto rule = std::ranges::find_if(rules, [&](const AtomRule& candidate) {
      return base::matches_glob(candidate.pattern, parameter.name);
    });
    if (rule == rules.end()) continue;
    parameter.atom = rule->atom;
    parameter.group = rule->group;
  }
}

}  // namespace fullshard::planner
