#include "shard/discover.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "fullshard/base/error.h"
#include "fullshard/base/text.h"
#include "fullshard/residency/paged_storage.h"
#include "shard/patterns.h"
#include "shard/precision.h"
#include "shard/strategy.h"

namespace fullshard::shard {
namespace {

constexpr std::size_t kRootUnit = 0;

void check_shardable(const std::string& name, const at::Tensor& tensor) {
  if (residency::paged_storage(tensor) != nullptr) {
    throw base::Error(
        base::ErrorCode::kMisuse,
        fmt::format("parameter '{}' is sharded already; call fully_shard once, on the "
                    "outermost module, and choose units by auto_wrap_policy",
                    name));
  }
  if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided) {
    throw base::Error(
        base::ErrorCode::kInvalidArgument,
        fmt::format("parameter '{}' has layout {} on device {}; fully_shard takes dense parameters "
                    "on the CPU",
                    name, c10::str(tensor.layout()), tensor.device().str()));
  }
}

std::string name_of(const ParameterRule& rule) {
  std::vector<std::string> words;
  if (rule.of_dtype) words.push_back(c10::toString(*rule.of_dtype));
  if (!rule.pattern.empty()) words.push_back(fmt::format("'{}'", rule.pattern));
  if (!rule.pattern.empty() && !rule.module_class.empty()) words.push_back("in");
  if (!rule.module_class.empty()) words.push_back(fmt::format("class '{}'", rule.module_class));
  return words.empty() ? "''" : fmt::format("{}", fmt::join(words, " "));
}

void check_convertible(const FoundParameter& parameter) {
  const at::ScalarType to = parameter.precision.compute;
  if (to == parameter.tensor.scalar_type()) return;
  if (parameter.tensor.is_floating_point() && c10::isFloatingType(to)) return;
  throw base::Error(
      base::ErrorCode::kInvalidArgument,
      fmt::format("the rule for {} would convert parameter '{}' from {} to {}; only "
                  "floating-point parameters can be converted, and only to floating point",
                  name_of(*parameter.rule), parameter.names.front(),
                  c10::toString(parameter.tensor.scalar_type()), c10::toString(to)));
}

class Discovery {
 public:
  Discovery(const ModelNode& root, const FullyShardOptions& options) : options_(options) {
    units_.push_back({.name = "(root)"});
    pick(root);
    visit(root, kRootUnit);
    check_rules();
    for (FoundUnit& unit : units_) apply_rules(unit);
  }

  FoundModel take() && {
    FoundModel out{.units = {}, .ignored = std::move(ignored_)};
    for (FoundUnit& unit : units_) divide(std::move(unit), out.units);
    return out;
  }

 private:
  void pick(const ModelNode& root) {
    std::unordered_set<std::string> known;
    for_each_node(root, [&](const ModelNode& node) { known.insert(node.name); });
    for (const UnitChoice& choice : options_.auto_wrap_policy(root)) {
      const std::string name = fmt::format("{}", fmt::join(choice, " + "));
      for (const std::string& module : choice) {
        if (module.empty()) continue;
        if (!known.contains(module)) throw no_such_module(module, known);
        unit_of_module_.emplace(module, units_.size());
      }
      units_.push_back({.name = name});
    }
  }

  static base::Error no_such_module(const std::string& name,
                                    const std::unordered_set<std::string>& known) {
    const std::vector<std::string> names(known.begin(), known.end());
    return {
        base::ErrorCode::kInvalidArgument,
        fmt::format("auto_wrap_policy picked '{}', which is no module of the model; the nearest "
                    "name is '{}'",
                    name, base::nearest_name(name, names))};
  }

  void visit(const ModelNode& node, std::size_t unit) {
    if (const auto picked = unit_of_module_.find(node.name); picked != unit_of_module_.end()) {
      unit = picked->second;
    }
    path_.push_back(&node);
    for (const NamedTensor& parameter : node.parameters) {
      holders_.emplace(parameter.name, path_);
      add(parameter, unit);
    }
    for (const ModelNode& child : node.children) visit(child, unit);
    path_.pop_back();
  }

  void add(const NamedTensor& parameter, std::size_t unit) {
    if (!parameter.tensor.defined()) return;
    names_.push_back(parameter.name);
    const auto [place, is_new] = places_.try_emplace(parameter.tensor.unsafeGetTensorImpl(), unit,
                                                     units_[unit].parameters.size());
    if (is_new) {
      units_[unit].parameters.push_back({parameter.tensor, {parameter.name}});
    } else {
      const auto [owner, index] = place->second;
      units_[owner].parameters[index].names.push_back(parameter.name);
    }
  }

  bool matches(const ParameterRule& rule, const FoundParameter& parameter) const {
    if (rule.of_dtype && rule.of_dtype != parameter.tensor.scalar_type()) return false;
    return matches(rule, parameter.names);
  }

  bool matches(const ParameterRule& rule, const std::vector<std::string>& names) const {
    const bool any_name = rule.pattern.empty() && (rule.of_dtype || !rule.module_class.empty());
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      if (!rule.module_class.empty() && !is_in_class(name, rule)) return false;
      return any_name || base::matches_glob(rule.pattern, name);
    });
  }

  Precision precision_of(const FoundParameter& parameter) const {
    const at::ScalarType found = parameter.tensor.scalar_type();
    if (parameter.rule != nullptr && parameter.rule->dtype) {
      const at::ScalarType wanted = *parameter.rule->dtype;
      return {wanted, wanted, wanted};
    }
    const MixedPrecision& mixed = options_.mixed_precision;
    if (!parameter.tensor.is_floating_point() || keeps_precision(parameter)) {
      return {found, found, found};
    }
    const at::ScalarType compute = mixed.param_dtype.value_or(found);
    return {compute, found, mixed.reduce_dtype.value_or(compute)};
  }

  bool keeps_precision(const FoundParameter& parameter) const {
    return std::any_of(
        parameter.names.begin(), parameter.names.end(), [&](const std::string& name) {
          const std::vector<const ModelNode*>& modules = holders_.at(name);
          return std::any_of(modules.begin(), modules.end(), [&](const ModelNode* node) {
            return keeps_precision_in(*node, options_.mixed_precision);
          });
        });
  }

  bool is_in_class(const std::string& parameter, const ParameterRule& rule) const {
    const std::vector<const ModelNode*>& modules = holders_.at(parameter);
    return std::any_of(modules.begin(), modules.end(), [&](const ModelNode* node) {
      if (rule.is_instance == nullptr || node->module == nullptr) {
        return is_of_class(*node, rule.module_class);
      }
      return rule.is_instance(*node->module);
    });
  }

  // After the whole visit, when all names of a tied parameter are known.
  void apply_rules(FoundUnit& unit) {
    std::vector<FoundParameter> kept;
    for (FoundParameter& parameter : unit.parameters) {
      const auto rule =
          std::find_if(options_.rules.begin(), options_.rules.end(),
                       [&](const ParameterRule& one) { return matches(one, parameter); });
      if (rule != options_.rules.end()) parameter.rule = &*rule;
      parameter.precision = precision_of(parameter);
      const bool ignored = parameter.rule != nullptr && parameter.rule->ignore;
      if (!ignored) {
        check_shardable(parameter.names.front(), parameter.tensor);
        check_convertible(parameter);
        check_apart(parameter);
      }
      const bool is_anothers = ignored && residency::paged_storage(parameter.tensor) != nullptr;
      if (!is_anothers) (ignored ? ignored_ : kept).push_back(std::move(parameter));
    }
    unit.parameters = std::move(kept);
  }

  struct Memory {
    std::uintptr_t begin;
    std::string name;  // of the parameter there
  };

  // Two tensors over one memory, for instance tied by set_data, would each get memory of its own.
  // Where elements do not lie side by side, only tensors that begin at the same one are noticed.
  void check_apart(const FoundParameter& parameter) {
    const at::Tensor& tensor = parameter.tensor;
    if (tensor.numel() == 0) return;
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
    std::int64_t last = 0;  // element, from the first
    for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    const std::uintptr_t end =
        begin +
        static_cast<std::uintptr_t>((last + 1) * static_cast<std::int64_t>(tensor.element_size()));
    const auto next = memory_.lower_bound(begin + 1);  // by its end
    const auto same = begins_.find(begin);
    const bool is_dense = tensor.is_non_overlapping_and_dense();
    const std::string* other = nullptr;
    if (same != begins_.end()) other = &same->second;
    if (is_dense && next != memory_.end() && next->second.begin < end) other = &next->second.name;
    if (other != nullptr) {
      throw base::Error(
          base::ErrorCode::kInvalidArgument,
          fmt::format(
              "parameters '{}' and '{}' are two tensors over one memory, and sharding would "
              "untie them; register one tensor under both names",
              *other, parameter.names.front()));
    }
    begins_.emplace(begin, parameter.names.front());
    if (is_dense) memory_[end] = {begin, parameter.names.front()};
  }

  void check_rules() const {
    for (const ParameterRule& rule : options_.rules) {
      const bool is_used = std::any_of(units_.begin(), units_.end(), [&](const FoundUnit& unit) {
        return std::any_of(
            unit.parameters.begin(), unit.parameters.end(),
            [&](const FoundParameter& parameter) { return matches(rule, parameter); });
      });
      if (!is_used) throw matches(rule, names_) ? no_such_dtype(rule) : no_such_parameter(rule);
    }
  }

  base::Error no_such_dtype(const ParameterRule& rule) const {
    std::set<std::string> there;
    for (const FoundUnit& unit : units_) {
      for (const FoundParameter& parameter : unit.parameters) {
        if (matches(rule, parameter.names)) {
          there.insert(c10::toString(parameter.tensor.scalar_type()));
        }
      }
    }
    return {base::ErrorCode::kInvalidArgument,
            fmt::format("the rule for {} matches no parameter; what it is about is of {}",
                        name_of(rule), fmt::join(there, " and "))};
  }

  base::Error no_such_parameter(const ParameterRule& rule) const {
    std::vector<std::string> near = names_;
    std::string wanted = rule.pattern;
    if (!rule.module_class.empty()) {
      near.clear();
      bool class_exists = false;
      for (const std::string& name : names_) {
        class_exists = class_exists || is_in_class(name, rule);
        for (const ModelNode* module : holders_.at(name)) near.push_back(module->class_name);
      }
      if (class_exists) near = names_;
      if (!class_exists) wanted = rule.module_class;
    }
    return {base::ErrorCode::kInvalidArgument,
            fmt::format("the rule for {} matches no parameter{}", name_of(rule),
                        suggestion(wanted, near))};
  }

  // What parameters of one flat buffer have in common. Frozen ones are apart so that gradients
  // and optimizer state take no memory for them and what is trained is cut evenly by itself.
  struct Kind {
    Precision precision;
    ShardingStrategy strategy;
    bool whole;
    bool frozen;
    auto operator<=>(const Kind&) const = default;
  };

  Kind kind_of(const FoundParameter& parameter) const {
    const ParameterRule* rule = parameter.rule;
    const ShardingStrategy strategy =
        rule != nullptr && rule->strategy ? *rule->strategy : options_.sharding_strategy;
    return {.precision = parameter.precision,
            .strategy = strategy,
            .whole = rule != nullptr && rule->atom == layout::Atom::kUnit &&
                     strategy != ShardingStrategy::NO_SHARD,
            .frozen = !parameter.tensor.requires_grad()};
  }

  void divide(FoundUnit unit, std::vector<FoundUnit>& out) const {
    std::map<Kind, FoundUnit> parts;
    for (FoundParameter& parameter : unit.parameters) {
      parts[kind_of(parameter)].parameters.push_back(std::move(parameter));
    }
    for (auto& [kind, part] : parts) {
      part.strategy = kind.strategy;
      part.whole = kind.whole;
      part.picked = unit.name;
      part.name = unit.name;
      if (parts.size() > 1) {
        part.name += fmt::format(
            " [{}, {}{}{}]",
            text_of(kind.precision,
                    [](at::ScalarType type) { return std::string(c10::toString(type)); }),
            to_string(kind.strategy), kind.whole ? ", whole" : "", kind.frozen ? ", frozen" : "");
      }
      out.push_back(std::move(part));
    }
  }

  const FullyShardOptions& options_;
  std::vector<FoundUnit> units_;
  std::vector<FoundParameter> ignored_;
  std::vector<std::string> names_;
  std::vector<const ModelNode*> path_;  // to where the visit is, from the root
  // By parameter: the modules that it is in, likewise.
  std::unordered_map<std::string, std::vector<const ModelNode*>> holders_;
  std::unordered_map<std::string, std::size_t> unit_of_module_;
  std::unordered_map<const c10::TensorImpl*, std::pair<std::size_t, std::size_t>> places_;
  std::map<std::uintptr_t, Memory> memory_;                 // of those to be sharded, by its end
  std::unordered_map<std::uintptr_t, std::string> begins_;  // names of all, by their first element
};

}  // namespace

FoundModel discover(const ModelNode& root, const FullyShardOptions& options) {
  return Discovery(root, options).take();
}

}  // namespace fullshard::shard
