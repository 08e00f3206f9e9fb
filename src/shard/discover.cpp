#include "shard/discover.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "fullshard/base/error.h"
#include "fullshard/residency/paged_storage.h"

namespace fullshard::shard {
namespace {

constexpr std::size_t kRootUnit = 0;

std::string dotted(const std::string& module, const std::string& leaf) {
  return module.empty() ? leaf : module + "." + leaf;
}

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

class Discovery {
 public:
  Discovery(const NamedModule& root, const WrapPolicy& policy) {
    units_.push_back({"(root)", {}});
    for (const NamedModule& picked : policy(root)) {
      if (picked.module == root.module) continue;
      if (unit_of_module_.emplace(picked.module.get(), units_.size()).second) {
        units_.push_back({picked.name, {}});
      }
    }
    visit(root, kRootUnit);
  }

  std::vector<FoundUnit> take() && {
    std::vector<FoundUnit> out;
    for (FoundUnit& unit : units_) split_by_dtype(std::move(unit), out);
    return out;
  }

 private:
  void visit(const NamedModule& node, std::size_t unit) {
    if (const auto picked = unit_of_module_.find(node.module.get());
        picked != unit_of_module_.end()) {
      unit = picked->second;
    }
    for (const auto& item : node.module->named_parameters(/*recurse=*/false)) {
      add(dotted(node.name, item.key()), item.value(), unit);
    }
    for (const auto& child : node.module->named_children()) {
      visit({dotted(node.name, child.key()), child.value()}, unit);
    }
  }

  void add(const std::string& name, const at::Tensor& tensor, std::size_t unit) {
    if (!tensor.defined()) return;
    const auto [place, is_new] =
        places_.try_emplace(tensor.unsafeGetTensorImpl(), unit, units_[unit].parameters.size());
    if (is_new) {
      check_shardable(name, tensor);
      units_[unit].parameters.push_back({tensor, {name}});
    } else {
      const auto [owner, index] = place->second;
      units_[owner].parameters[index].names.push_back(name);
    }
  }

  static void split_by_dtype(FoundUnit unit, std::vector<FoundUnit>& out) {
    std::map<at::ScalarType, FoundUnit> parts;
    for (FoundParameter& parameter : unit.parameters) {
      parts[parameter.tensor.scalar_type()].parameters.push_back(std::move(parameter));
    }
    for (auto& [dtype, part] : parts) {
      part.name =
          parts.size() == 1 ? unit.name : fmt::format("{} [{}]", unit.name, c10::toString(dtype));
      out.push_back(std::move(part));
    }
  }

  std::vector<FoundUnit> units_;
  std::unordered_map<const torch::nn::Module*, std::size_t> unit_of_module_;
  std::unordered_map<const c10::TensorImpl*, std::pair<std::size_t, std::size_t>> places_;
};

}  // namespace

std::vector<FoundUnit> discover_units(const NamedModule& root, const WrapPolicy& policy) {
  return Discovery(root, policy).take();
}

}  // namespace fullshard::shard
