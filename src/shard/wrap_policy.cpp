#include "fullshard/shard/wrap_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "fullshard/base/error.h"
#include "fullshard/base/text.h"
#include "shard/patterns.h"

namespace fullshard::shard {
namespace {

// Elements under `node` that no unit holds yet, after picking units among its descendants.
std::int64_t pick_by_size(const ModelNode& node, std::int64_t min_params,
                          std::unordered_set<const void*>& counted,
                          std::vector<UnitChoice>& units) {
  std::int64_t left = 0;
  for (const NamedTensor& parameter : node.parameters) {
    if (!parameter.tensor.defined()) continue;
    if (counted.insert(parameter.tensor.unsafeGetTensorImpl()).second) {
      left += parameter.tensor.numel();
    }
  }
  for (const ModelNode& child : node.children) {
    left += pick_by_size(child, min_params, counted, units);
  }
  const bool is_root = node.name.empty();
  if (is_root || left < min_params || left == 0) return left;
  units.push_back({node.name});
  return 0;
}

base::Error no_such_class(const std::string& name, const std::vector<std::string>& classes) {
  return {base::ErrorCode::kInvalidArgument,
          fmt::format("no module of the model is of class '{}' in wrap_classes{}", name,
                      suggestion(name, classes))};
}

}  // namespace

WrapPolicy wrap_where(std::function<bool(const ModelNode&)> matches) {
  return [matches = std::move(matches)](const ModelNode& root) {
    std::vector<UnitChoice> units;
    for_each_node(root, [&](const ModelNode& node) {
      if (!node.name.empty() && matches(node)) units.push_back({node.name});
    });
    return units;
  };
}

WrapPolicy wrap_named(std::vector<std::string> patterns) {
  return [patterns = std::move(patterns)](const ModelNode& root) {
    std::vector<std::string> names;
    std::vector<UnitChoice> units;
    for_each_node(root, [&](const ModelNode& node) {
      if (node.name.empty()) return;
      names.push_back(node.name);
      const bool matches = std::any_of(
          patterns.begin(), patterns.end(),
          [&](const std::string& pattern) { return base::matches_glob(pattern, node.name); });
      if (matches) units.push_back({node.name});
    });
    require_matches("wrap_named", patterns, "module", names);
    return units;
  };
}

WrapPolicy wrap_classes(std::vector<std::string> class_names) {
  return [wanted = std::move(class_names)](const ModelNode& root) {
    std::vector<std::string> classes;
    std::unordered_set<std::string> met;
    std::vector<UnitChoice> units;
    for_each_node(root, [&](const ModelNode& node) {
      if (node.name.empty()) return;
      classes.push_back(node.class_name);
      const auto match = std::find_if(wanted.begin(), wanted.end(), [&](const std::string& name) {
        return is_of_class(node, name);
      });
      if (match == wanted.end()) return;
      units.push_back({node.name});
      for (const std::string& name : wanted) {
        if (is_of_class(node, name)) met.insert(name);
      }
    });
    for (const std::string& name : wanted) {
      if (!met.contains(name)) throw no_such_class(name, classes);
    }
    return units;
  };
}

WrapPolicy size_based(std::int64_t min_params) {
  return [min_params](const ModelNode& root) {
    std::vector<UnitChoice> units;
    std::unordered_set<const void*> counted;
    pick_by_size(root, min_params, counted, units);
    return units;
  };
}

WrapPolicy root_only() {
  return [](const ModelNode&) { return std::vector<UnitChoice>{}; };
}

WrapPolicy with_groups(WrapPolicy base, std::vector<UnitChoice> groups) {
  return [base = std::move(base), groups = std::move(groups)](const ModelNode& root) {
    std::unordered_set<std::string> grouped;
    for (const UnitChoice& group : groups) grouped.insert(group.begin(), group.end());
    std::vector<UnitChoice> units = base(root);
    for (UnitChoice& unit : units) {
      std::erase_if(unit, [&](const std::string& name) { return grouped.contains(name); });
    }
    std::erase_if(units, [](const UnitChoice& unit) { return unit.empty(); });
    units.insert(units.end(), groups.begin(), groups.end());
    return units;
  };
}

}  // namespace fullshard::shard
