#include "shard/lay_out.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
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
                             .dtype = to_dtype(found.precision.compute, found.names.front()),
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

// Lays out units: first those that are cut, then those that are not, each where least lies. A rank
// of the shard group is cut once more where its replicas divide the updates.
class Placement {
 public:
  Placement(const std::vector<FoundUnit>& found, const FullyShardOptions& options,
            const comm::Mesh& mesh)
      : found_(found),
        options_(options),
        world_(mesh.shard->size()),
        parts_(options.shard_optimizer_over_replicas ? mesh.replicate->size() : 1),
        layouts_(found.size()),
        pieces_(found.size()) {
    for (const double weight : options_.shard_weights) {
      part_weights_.insert(part_weights_.end(), static_cast<std::size_t>(parts_), weight);
    }
    for (std::size_t u = 0; u < found_.size(); ++u) {
      layouts_[u] = lay_out_cut(found_[u]);
      pieces_[u] = cut_pieces(found_[u], *layouts_[u]);
    }
    place_whole();
  }

  const layout::UnitLayout& layout(std::size_t unit) const { return *layouts_[unit]; }
  const std::vector<layout::Range>& pieces(std::size_t unit) const { return pieces_[unit]; }

 private:
  static bool is_replicated(const FoundUnit& unit) {
    return unit.strategy == ShardingStrategy::NO_SHARD;
  }

  // Also those that are not to be cut, to know their bytes and have the options checked.
  layout::UnitLayout lay_out_cut(const FoundUnit& unit) const {
    if (is_replicated(unit)) return layout_of(unit, options_, {});
    return layout_of(unit, options_, {.world = world_, .weights = options_.shard_weights});
  }

  // The layout over all parts has the cuts of the other too, up to rounding where two are equally
  // near; those of the other count.
  std::vector<layout::Range> cut_pieces(const FoundUnit& unit,
                                        const layout::UnitLayout& shards) const {
    if (is_replicated(unit)) return {shards.slice(0)};
    const layout::UnitLayout all =
        layout_of(unit, options_, {.world = world_ * parts_, .weights = part_weights_});
    std::vector<layout::Range> pieces;
    for (int rank = 0; rank < world_; ++rank) {
      const layout::Range shard = shards.slice(rank);
      std::int64_t at = shard.begin;
      for (int part = 0; part < parts_; ++part) {
        const std::int64_t end = all.slice(rank * parts_ + part).end;
        const std::int64_t cut = part + 1 == parts_ ? shard.end : std::clamp(end, at, shard.end);
        pieces.push_back({at, cut});
        at = cut;
      }
    }
    return pieces;
  }

  // The parts of a unit that was divided, for instance by dtype, have one owner.
  void place_whole() {
    std::map<std::string, std::size_t> index_of;  // in `bytes`, by picked unit
    std::vector<std::int64_t> bytes;
    std::vector<std::int64_t> loads(static_cast<std::size_t>(world_ * parts_), 0);
    for (std::size_t u = 0; u < found_.size(); ++u) {
      const FoundUnit& unit = found_[u];
      if (unit.whole) {
        const auto [at, is_new] = index_of.try_emplace(unit.picked, bytes.size());
        if (is_new) bytes.push_back(0);
        bytes[at->second] += layouts_[u]->flat_bytes();
      } else if (!is_replicated(unit)) {
        for (std::size_t part = 0; part < loads.size(); ++part) {
          loads[part] += pieces_[u][part].size() * layouts_[u]->element_bytes();
        }
      }
    }
    if (bytes.empty()) return;
    const std::vector<int> owners = layout::assign_owners(bytes, std::move(loads), part_weights_);
    for (std::size_t u = 0; u < found_.size(); ++u) {
      if (found_[u].whole) place_on(owners[index_of[found_[u].picked]], u);
    }
  }

  void place_on(int part, std::size_t u) {
    layout::LayoutOptions all_on_one{
        .world = world_, .weights = std::vector<double>(static_cast<std::size_t>(world_), 0.0)};
    all_on_one.weights[static_cast<std::size_t>(part / parts_)] = 1;
    layouts_[u] = layout_of(found_[u], options_, all_on_one);
    const std::int64_t size = layouts_[u]->flat_size();
    for (int at = 0; at < world_ * parts_; ++at) {
      pieces_[u][static_cast<std::size_t>(at)] = {at > part ? size : 0, at < part ? 0 : size};
    }
  }

  const std::vector<FoundUnit>& found_;
  const FullyShardOptions& options_;
  int world_;
  int parts_;                         // of each rank's shard
  std::vector<double> part_weights_;  // empty for equal ones
  std::vector<std::optional<layout::UnitLayout>> layouts_;
  std::vector<std::vector<layout::Range>> pieces_;
};

}  // namespace

std::vector<FlatUnit> lay_out(std::vector<FoundUnit> found, const FullyShardOptions& options,
                              const comm::Mesh& mesh) {
  const Placement placement(found, options, mesh);
  std::vector<FlatUnit> units;
  for (std::size_t u = 0; u < found.size(); ++u) {
    FoundUnit& unit = found[u];
    FlatUnit flat{.name = unit.name,
                  .picked = unit.picked,
                  .strategy = unit.strategy,
                  .layout = placement.layout(u),
                  .parameters = std::move(unit.parameters)};
    flat.pieces = placement.pieces(u);
    const int rank = flat.replicated() ? 0 : mesh.shard->rank();
    flat.held = flat.layout.slice(rank);
    const std::span<const layout::Range> pieces = flat.pieces_of(rank);
    flat.own = pieces.size() == 1 ? pieces.front()
                                  : pieces[static_cast<std::size_t>(mesh.replicate->rank())];
    units.push_back(std::move(flat));
  }
  return units;
}

}  // namespace fullshard::shard
