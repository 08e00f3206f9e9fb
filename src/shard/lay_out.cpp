#include "shard/lay_out.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "fullshard/layout/whole_units.h"
#include "shard/dtype.h"

namespace fullshard::shard {
namespace {

layout::ParameterSpec spec_of(const FoundParameter& found, bool whole,
                              const FullyShardOptions& options) {
  layout::ParameterSpec spec{.name = found.names.front(),
                             .shape = found.tensor.sizes().vec(),
                             .dtype = to_dtype(found.dtype(), found.names.front()),
                             .trainable = found.tensor.requires_grad()};
  if (found.rule != nullptr && found.rule->atom) {
    const bool replicated = *found.rule->atom == layout::Atom::kUnit && !whole;
    spec.atom = replicated ? layout::Atom::kElement : *found.rule->atom;
    spec.group = found.rule->group;
  } else if (found.tensor.numel() < options.min_shard_elements) {
    spec.atom = layout::Atom::kParameter;
  }
  return spec;
}

layout::UnitLayout layout_of(const FoundUnit& unit, const FullyShardOptions& options,
                             const layout::LayoutOptions& layout_options) {
  std::vector<layout::ParameterSpec> specs;
  for (const FoundParameter& parameter : unit.parameters) {
    specs.push_back(spec_of(parameter, unit.whole, options));
  }
  return layout::UnitLayout::make(unit.name, std::move(specs), layout_options);
}

// Lays out units: first those that are cut, then those that are not, each where least lies.
class Placement {
 public:
  Placement(const std::vector<FoundUnit>& found, const FullyShardOptions& options, int world)
      : found_(found), options_(options), world_(world), layouts_(found.size()) {
    for (std::size_t u = 0; u < found_.size(); ++u) layouts_[u] = lay_out_cut(found_[u]);
    place_whole();
  }

  const layout::UnitLayout& layout(std::size_t unit) const { return *layouts_[unit]; }

 private:
  // Also those that are not to be cut, to know their bytes and have the options checked.
  layout::UnitLayout lay_out_cut(const FoundUnit& unit) const {
    if (unit.strategy == ShardingStrategy::NO_SHARD) return layout_of(unit, options_, {});
    return layout_of(unit, options_, {.world = world_, .weights = options_.shard_weights});
  }

  // The parts of a unit that was divided, for instance by dtype, have one owner.
  void place_whole() {
    std::map<std::string, std::size_t> index_of;  // in `bytes`, by picked unit
    std::vector<std::int64_t> bytes;
    std::vector<std::int64_t> loads(static_cast<std::size_t>(world_), 0);
    for (std::size_t u = 0; u < found_.size(); ++u) {
      const FoundUnit& unit = found_[u];
      if (unit.whole) {
        const auto [at, is_new] = index_of.try_emplace(unit.picked, bytes.size());
        if (is_new) bytes.push_back(0);
        bytes[at->second] += layouts_[u]->flat_bytes();
      } else if (unit.strategy != ShardingStrategy::NO_SHARD) {
        for (int rank = 0; rank < world_; ++rank) {
          loads[static_cast<std::size_t>(rank)] += layouts_[u]->slice_bytes(rank);
        }
      }
    }
    if (bytes.empty()) return;
    const std::vector<int> owners =
        layout::assign_owners(bytes, std::move(loads), options_.shard_weights);
    for (std::size_t u = 0; u < found_.size(); ++u) {
      if (found_[u].whole) layouts_[u] = on_one_rank(found_[u], owners[index_of[found_[u].picked]]);
    }
  }

  layout::UnitLayout on_one_rank(const FoundUnit& unit, int owner) const {
    layout::LayoutOptions all_on_one{
        .world = world_, .weights = std::vector<double>(static_cast<std::size_t>(world_), 0.0)};
    all_on_one.weights[static_cast<std::size_t>(owner)] = 1;
    return layout_of(unit, options_, all_on_one);
  }

  const std::vector<FoundUnit>& found_;
  const FullyShardOptions& options_;
  int world_;
  std::vector<std::optional<layout::UnitLayout>> layouts_;
};

}  // namespace

std::vector<FlatUnit> lay_out(std::vector<FoundUnit> found, const FullyShardOptions& options,
                              const comm::Mesh& mesh) {
  const Placement placement(found, options, mesh.shard->size());
  std::vector<FlatUnit> units;
  for (std::size_t u = 0; u < found.size(); ++u) {
    FoundUnit& unit = found[u];
    FlatUnit flat{.name = unit.name,
                  .picked = unit.picked,
                  .strategy = unit.strategy,
                  .layout = placement.layout(u),
                  .parameters = std::move(unit.parameters)};
    flat.own = flat.layout.slice(flat.replicated() ? 0 : mesh.shard->rank());
    units.push_back(std::move(flat));
  }
  return units;
}

}  // namespace fullshard::shard
