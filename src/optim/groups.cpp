#include "fullshard/optim/groups.h"

#include <fmt/format.h>

#include <algorithm>

#include "fullshard/base/error.h"
#include "fullshard/base/text.h"

namespace fullshard::optim {
namespace {

bool takes(const GroupRule& rule, const state::ShardedTensor& parameter) {
  return base::matches_glob(rule.pattern, parameter.name) &&
         static_cast<std::int64_t>(parameter.global_shape.size()) <= rule.max_dimensions;
}

/// The name with the smallest distance to the pattern's literal part.
std::string suggestion(const GroupRule& rule, std::span<const state::ShardedTensor> parameters) {
  std::string literal = rule.pattern;
  std::erase(literal, '*');
  std::vector<std::string> names;
  for (const auto& parameter : parameters) names.push_back(parameter.name);
  const std::string nearest = base::nearest_name(literal, names);
  if (!nearest.empty()) return fmt::format("; did you mean \"{}\"?", nearest);
  return names.empty() ? "" : fmt::format("; names look like \"{}\"", names.front());
}

void require_match(const GroupRule& rule, std::span<const state::ShardedTensor> parameters) {
  const auto matches = [&](const state::ShardedTensor& parameter) {
    return base::matches_glob(rule.pattern, parameter.name);
  };
  if (!rule.must_match || std::any_of(parameters.begin(), parameters.end(), matches)) return;
  throw base::Error(base::ErrorCode::kConfiguration,
                    fmt::format("optimizer group \"{}\" matches no parameter{}", rule.pattern,
                                suggestion(rule, parameters)));
}

}  // namespace

std::vector<GroupRule> default_no_decay_rules() {
  const auto no_decay = [](const char* pattern) {
    GroupRule rule;
    rule.pattern = pattern;
    rule.weight_decay = 0.0;
    rule.must_match = false;
    return rule;
  };
  GroupRule flat = no_decay("*");
  flat.max_dimensions = 1;
  return {no_decay("*norm*"), no_decay("*.bias"), flat};
}

std::vector<std::size_t> assign_groups(std::span<const state::ShardedTensor> parameters,
                                       std::span<const GroupRule> rules) {
  for (const GroupRule& rule : rules) require_match(rule, parameters);
  std::vector<std::size_t> groups;
  groups.reserve(parameters.size());
  for (const auto& parameter : parameters) {
    const auto rule = std::find_if(rules.begin(), rules.end(),
                                   [&](const GroupRule& r) { return takes(r, parameter); });
    groups.push_back(static_cast<std::size_t>(rule - rules.begin()));
  }
  return groups;
}

}  // namespace fullshard::optim
