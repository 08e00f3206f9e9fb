#include "fullshard/shard/wrap_policy.h"

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <unordered_set>

namespace fullshard::shard {
namespace {

using Seen = std::unordered_set<const void*>;

void append_modules(const NamedModule& node, Seen& seen, std::vector<NamedModule>& out) {
  if (!seen.insert(node.module.get()).second) return;
  out.push_back(node);
  for (const auto& child : node.module->named_children()) {
    const std::string name = node.name.empty() ? child.key() : node.name + "." + child.key();
    append_modules({name, child.value()}, seen, out);
  }
}

std::int64_t elements(const torch::nn::Module& module) {
  std::int64_t sum = 0;
  for (const auto& parameter : module.parameters(/*recurse=*/true)) sum += parameter.numel();
  return sum;
}

// Elements under `node` that no unit holds yet, after picking units among its descendants.
std::int64_t pick_by_size(const NamedModule& node, bool is_root, std::int64_t min_params,
                          Seen& counted, std::vector<NamedModule>& units) {
  std::int64_t left = 0;
  for (const auto& parameter : node.module->parameters(/*recurse=*/false)) {
    if (counted.insert(parameter.unsafeGetTensorImpl()).second) left += parameter.numel();
  }
  for (const auto& child : node.module->named_children()) {
    const std::string name = node.name.empty() ? child.key() : node.name + "." + child.key();
    left += pick_by_size({name, child.value()}, false, min_params, counted, units);
  }
  if (is_root || left < min_params || left == 0) return left;
  units.push_back(node);
  return 0;
}

bool is_layer_list(const torch::nn::Module& module) {
  if (dynamic_cast<const torch::nn::ModuleListImpl*>(&module) == nullptr &&
      dynamic_cast<const torch::nn::SequentialImpl*>(&module) == nullptr) {
    return false;
  }
  const auto children = module.children();
  return std::count_if(children.begin(), children.end(),
                       [](const auto& child) { return !child->parameters().empty(); }) >= 2;
}

std::vector<NamedModule> members_of_layer_lists(const NamedModule& root) {
  std::vector<NamedModule> units;
  for (const NamedModule& list : all_modules(root)) {
    if (!is_layer_list(*list.module)) continue;
    for (const auto& child : list.module->named_children()) {
      if (child.value()->parameters().empty()) continue;
      const std::string name = list.name.empty() ? child.key() : list.name + "." + child.key();
      units.push_back({name, child.value()});
    }
  }
  return units;
}

}  // namespace

std::vector<NamedModule> all_modules(const NamedModule& root) {
  std::vector<NamedModule> out;
  Seen seen;
  append_modules(root, seen, out);
  return out;
}

WrapPolicy wrap_where(std::function<bool(const torch::nn::Module&)> matches) {
  return [matches = std::move(matches)](const NamedModule& root) {
    std::vector<NamedModule> units = all_modules(root);
    std::erase_if(units, [&](const NamedModule& candidate) {
      return candidate.module == root.module || !matches(*candidate.module);
    });
    return units;
  };
}

WrapPolicy size_based(std::int64_t min_params) {
  return [min_params](const NamedModule& root) {
    std::vector<NamedModule> units;
    Seen counted;
    pick_by_size(root, true, min_params, counted, units);
    return units;
  };
}

WrapPolicy automatic() {
  return [](const NamedModule& root) {
    std::vector<NamedModule> units = members_of_layer_lists(root);
    if (!units.empty()) return units;
    return size_based(elements(*root.module) / 8)(root);
  };
}

WrapPolicy root_only() {
  return [](const NamedModule&) { return std::vector<NamedModule>{}; };
}

}  // namespace fullshard::shard
