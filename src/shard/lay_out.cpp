#include "shard/lay_out.h"

#include <utility>

#include "shard/dtype.h"

namespace fullshard::shard {
namespace {

layout::ParameterSpec spec_of(const FoundParameter& found, const FullyShardOptions& options) {
  layout::ParameterSpec spec{.name = found.names.front(),
                             .shape = found.tensor.sizes().vec(),
                             .dtype = to_dtype(found.dtype(), found.names.front()),
                             .trainable = found.tensor.requires_grad()};
  if (found.rule != nullptr && found.rule->atom) {
    spec.atom = *found.rule->atom;
    spec.group = found.rule->group;
  } else if (found.tensor.numel() < options.min_shard_elements) {
    spec.atom = layout::Atom::kParameter;
  }
  return spec;
}

}  // namespace

std::vector<FlatUnit> lay_out(std::vector<FoundUnit> found, const FullyShardOptions& options,
                              const comm::Mesh& mesh) {
  std::vector<FlatUnit> units;
  for (FoundUnit& unit : found) {
    const bool replicated = unit.strategy == ShardingStrategy::NO_SHARD;
    layout::LayoutOptions layout_options;
    if (!replicated) {
      layout_options.world = mesh.shard->size();
      layout_options.weights = options.shard_weights;
    }
    std::vector<layout::ParameterSpec> specs;
    for (const FoundParameter& parameter : unit.parameters) {
      specs.push_back(spec_of(parameter, options));
    }
    FlatUnit flat{.name = unit.name,
                  .picked = unit.picked,
                  .strategy = unit.strategy,
                  .layout = layout::UnitLayout::make(unit.name, std::move(specs), layout_options),
                  .parameters = std::move(unit.parameters)};
    flat.own = flat.layout.slice(replicated ? 0 : mesh.shard->rank());
    units.push_back(std::move(flat));
  }
  return units;
}

}  // namespace fullshard::shard
