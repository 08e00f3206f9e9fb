#include "shard/describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <unordered_set>

#include "fullshard/base/text.h"
#include "shard/engine.h"
#include "shard/strategy.h"

namespace fullshard::shard {
namespace {

std::string owners(const FlatUnit& unit, std::size_t parameter) {
  if (unit.replicated()) return "all ranks";
  const layout::PlacedParameter& placed = unit.layout.parameters()[parameter];
  const bool columns = unit.cut_dimension(parameter) == 1;
  const std::int64_t column = columns ? placed.strides()[1] : 1;
  std::vector<std::string> parts;
  for (int rank = 0; rank < unit.layout.world(); ++rank) {
    const layout::Range range = unit.layout.shard(parameter, rank);
    if (range.empty()) continue;
    parts.push_back(fmt::format("{}:{}[{},{})", rank, columns ? "columns" : "",
                                range.begin / column, range.end / column));
  }
  return parts.empty() ? "-" : fmt::format("{}", fmt::join(parts, " "));
}

// Which rank has all of the unit, where it is not cut.
std::string whole_on(const FlatUnit& unit) {
  if (!unit.layout.is_whole()) return "";
  for (int rank = 0; rank < unit.layout.world(); ++rank) {
    if (!unit.layout.slice(rank).empty()) return fmt::format("  whole on rank {}", rank);
  }
  return "";
}

// By how many ranks what one holds is updated, where replicas divide that.
std::string updates_of(const FlatUnit& unit) {
  if (!unit.divided()) return "";
  return fmt::format("  updates divided over {} replicas", unit.pieces_of(0).size());
}

// Parameters of the model that no unit has, because a rule leaves them alone.
std::string ignored(const Engine& engine) {
  std::unordered_set<std::string> sharded;
  for (const FlatUnit& unit : engine.units()) {
    for (const FoundParameter& parameter : unit.parameters) {
      sharded.insert(parameter.names.begin(), parameter.names.end());
    }
  }
  std::string lines;
  for_each_node(engine.model().root, [&](const ModelNode& node) {
    for (const NamedTensor& parameter : node.parameters) {
      if (!parameter.tensor.defined() || sharded.contains(parameter.name)) continue;
      lines +=
          fmt::format("  {}  [{}]  {}\n", parameter.name, fmt::join(parameter.tensor.sizes(), ", "),
                      c10::toString(parameter.tensor.scalar_type()));
    }
  });
  return lines.empty() ? "" : "ignored, every rank has its own\n" + lines;
}

}  // namespace

std::string describe(const Engine& engine) {
  std::string out = fmt::format("{} ranks: {} x shard {}\n", engine.mesh().all->size(),
                                engine.mesh().replicate->size(), engine.mesh().shard->size());
  for (const FlatUnit& unit : engine.units()) {
    out +=
        fmt::format("{}  {}  {}  {}{}{}\n", unit.name, to_string(unit.strategy),
                    base::to_string(unit.layout.dtype()),
                    base::format_bytes(unit.layout.flat_bytes()), whole_on(unit), updates_of(unit));
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const layout::PlacedParameter& placed = unit.layout.parameters()[i];
      out += fmt::format("  {}  [{}]  {}\n", fmt::join(unit.parameters[i].names, " = "),
                         fmt::join(placed.spec.shape, ", "), owners(unit, i));
    }
  }
  return out + ignored(engine);
}

}  // namespace fullshard::shard
