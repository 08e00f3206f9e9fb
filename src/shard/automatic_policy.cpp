#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "fullshard/base/error.h"
#include "fullshard/shard/wrap_policy.h"

// Units chosen from a model's structure and sizes: docs/design/units.md.

namespace fullshard::shard {
namespace {

// A unit has at least a thirty-second of the model, or this many elements, which are enough to make
// a collective worth its start.
constexpr std::int64_t kEnoughElements = std::int64_t{1} << 20;
constexpr std::int64_t kMostUnits = 32;
// A module that is not one of many alike is divided when it has more than this part of the model.
constexpr std::int64_t kLargePart = 4;
// And one of many alike when it is this large.
constexpr std::int64_t kTooManyElements = std::int64_t{1} << 30;

// Elements of every subtree; a tied parameter counts where it is met first.
class Sizes {
 public:
  explicit Sizes(const ModelNode& root) { count(root); }
  std::int64_t of(const ModelNode& node) const { return elements_.at(&node); }

 private:
  std::int64_t count(const ModelNode& node) {
    std::int64_t sum = 0;
    for (const NamedTensor& parameter : node.parameters) {
      if (!parameter.tensor.defined()) continue;
      if (seen_.insert(parameter.tensor.unsafeGetTensorImpl()).second) {
        sum += parameter.tensor.numel();
      }
    }
    for (const ModelNode& child : node.children) sum += count(child);
    elements_[&node] = sum;
    return sum;
  }

  std::unordered_set<const void*> seen_;
  std::unordered_map<const ModelNode*, std::int64_t> elements_;
};

// TorchScript gives instances of one class that differ in a constant names of their own.
std::string without_mangling(std::string class_name) {
  static constexpr std::string_view kMark = "___torch_mangle_";
  for (auto at = class_name.find(kMark); at != std::string::npos; at = class_name.find(kMark)) {
    const auto end = class_name.find('.', at);
    if (end == std::string::npos) break;
    class_name.erase(at, end - at + 1);
  }
  return class_name;
}

// Equal for modules of the same class, with parameters of the same shapes, and children alike.
std::string signature(const ModelNode& node) {
  std::string out = without_mangling(node.class_name) + "(";
  for (const NamedTensor& parameter : node.parameters) {
    if (parameter.tensor.defined())
      out += fmt::format("[{}]", fmt::join(parameter.tensor.sizes(), ","));
  }
  for (const ModelNode& child : node.children) out += signature(child);
  return out + ")";
}

// A list of layers of which several are equal and hold more than half of it. Not all have to be:
// the first block of a T5 stack holds the table of relative positions.
bool is_stack(const ModelNode& node, const Sizes& sizes) {
  if (!node.is_layer_list) return false;
  struct Alike {
    std::int64_t members = 0;
    std::int64_t elements = 0;
  };
  std::map<std::string, Alike> kinds;
  for (const ModelNode& child : node.children) {
    if (sizes.of(child) == 0) continue;
    Alike& kind = kinds[signature(child)];
    ++kind.members;
    kind.elements += sizes.of(child);
  }
  return std::any_of(kinds.begin(), kinds.end(), [&](const auto& kind) {
    return kind.second.members > 1 && 2 * kind.second.elements > sizes.of(node);
  });
}

// Elements in the outermost stacks of a subtree.
std::int64_t elements_in_stacks(const ModelNode& node, const Sizes& sizes) {
  if (is_stack(node, sizes)) return sizes.of(node);
  std::int64_t sum = 0;
  for (const ModelNode& child : node.children) sum += elements_in_stacks(child, sizes);
  return sum;
}

void members_of_stacks(const ModelNode& node, const Sizes& sizes, std::vector<UnitChoice>& units) {
  const bool stack = is_stack(node, sizes);
  for (const ModelNode& child : node.children) {
    if (!stack) {
      members_of_stacks(child, sizes, units);
    } else if (sizes.of(child) > 0) {
      units.push_back({child.name});
    }
  }
}

// Divides a model into pieces, in the order of its modules, and joins small neighbours.
class Division {
 public:
  explicit Division(const ModelNode& root)
      : sizes_(root),
        total_(sizes_.of(root)),
        floor_(std::min(total_ / kMostUnits, kEnoughElements)) {
    open(root);
  }

  std::vector<UnitChoice> units() const {
    const std::int64_t largest_member = largest_in_stacks();
    bool root_has_large = largest_member == 0;
    std::vector<UnitChoice> out;
    for (const Group& group : groups_) {
      if (group.elements < floor_ || group.elements == 0) continue;
      if (group.stack == 0 && group.elements <= largest_member) continue;
      // The root is gathered for what is beside the stacks; one large table fits there.
      if (group.stack == 0 && group.only_leaves && !std::exchange(root_has_large, true)) continue;
      out.push_back(group.modules);
    }
    return out;
  }

 private:
  struct Group {
    UnitChoice modules;
    int stack = 0;  // number of the list of equal children that they are of; 0 for none
    std::int64_t elements = 0;
    std::int64_t largest = 0;
    bool only_leaves = true;
  };

  void open(const ModelNode& node) {
    const int stack = is_stack(node, sizes_) ? ++stacks_ : 0;
    for (const ModelNode& child : node.children) {
      if (sizes_.of(child) == 0) continue;
      if (is_to_be_opened(child, stack > 0)) {
        // What is in one of many alike is not joined with what is in the next.
        at_boundary_ = at_boundary_ || stack > 0;
        open(child);
        at_boundary_ = at_boundary_ || stack > 0;
      } else {
        add(child, stack);
      }
    }
    if (stack > 0) close_group();
  }

  bool is_to_be_opened(const ModelNode& node, bool in_stack) const {
    const std::int64_t elements = sizes_.of(node);
    if (elements < floor_ || node.children.empty()) return false;
    const bool large = elements > total_ / kLargePart;
    const bool of_stacks = 2 * elements_in_stacks(node, sizes_) >= elements;
    if (in_stack) return (large && of_stacks) || elements > kTooManyElements;
    return large || of_stacks;
  }

  void add(const ModelNode& node, int stack) {
    const std::int64_t elements = sizes_.of(node);
    if (std::exchange(at_boundary_, false) || groups_.empty() || groups_.back().stack != stack ||
        !joins(groups_.back(), elements)) {
      close_group();
      groups_.push_back({.stack = stack});
    }
    Group& group = groups_.back();
    group.modules.push_back(node.name);
    group.elements += elements;
    group.largest = std::max(group.largest, elements);
    group.only_leaves = group.only_leaves && node.children.empty();
  }

  // A group takes what comes until it is large enough, and then small ones that are no group by
  // themselves, such as the normalisation behind a convolution.
  bool joins(const Group& group, std::int64_t elements) const {
    return group.elements < floor_ || group.elements - group.largest + elements < floor_;
  }

  // What is left over at the end of a list goes with what is before it.
  void close_group() {
    if (groups_.size() < 2 || groups_.back().elements >= floor_) return;
    Group& last = groups_.back();
    Group& before = groups_[groups_.size() - 2];
    if (last.stack != before.stack || last.stack == 0) return;
    before.modules.insert(before.modules.end(), last.modules.begin(), last.modules.end());
    before.elements += last.elements;
    groups_.pop_back();
  }

  std::int64_t largest_in_stacks() const {
    std::int64_t largest = 0;
    for (const Group& group : groups_) {
      if (group.stack > 0 && group.elements >= floor_) largest = std::max(largest, group.largest);
    }
    return largest;
  }

  const Sizes sizes_;
  std::int64_t total_;
  std::int64_t floor_;
  int stacks_ = 0;
  bool at_boundary_ = false;  // the next piece begins a group
  std::vector<Group> groups_;
};

}  // namespace

WrapPolicy transformer_blocks() {
  return [](const ModelNode& root) {
    std::vector<UnitChoice> units;
    members_of_stacks(root, Sizes(root), units);
    if (!units.empty()) return units;
    throw base::Error(
        base::ErrorCode::kInvalidArgument,
        "transformer_blocks() found no ModuleList or Sequential of which several members are equal "
        "(the same class and parameter shapes) and hold more than half; use automatic(), or "
        "wrap_modules<YourBlockImpl>() with the class of the model's repeated layer");
  };
}

WrapPolicy automatic() {
  return [](const ModelNode& root) { return Division(root).units(); };
}

}  // namespace fullshard::shard
