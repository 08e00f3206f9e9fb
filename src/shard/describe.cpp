#include "shard/describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <vector>

#include "fullshard/base/text.h"
#include "shard/dtype.h"
#include "shard/engine.h"
#include "shard/precision.h"
#include "shard/strategy.h"

namespace fullshard::shard {
namespace {

struct RankRange {
  int rank;
  layout::Range flat;  // elements of the unit
};

// What the ranks have of a parameter, those that have nothing left out.
std::string ranges_of(const FlatUnit& unit, std::size_t parameter,
                      const std::vector<RankRange>& ranges) {
  const layout::PlacedParameter& placed = unit.layout.parameters()[parameter];
  const bool columns = unit.cut_dimension(parameter) == 1;
  const std::int64_t column = columns ? placed.strides()[1] : 1;
  std::vector<std::string> parts;
  for (const auto& [rank, flat] : ranges) {
    const layout::Range range = intersect(flat, placed.flat());
    if (range.empty()) continue;
    parts.push_back(fmt::format("{}:{}[{},{})", rank, columns ? "columns" : "",
                                (range.begin - placed.offset) / column,
                                (range.end - placed.offset) / column));
  }
  return parts.empty() ? "-" : fmt::format("{}", fmt::join(parts, " "));
}

std::string owners(const FlatUnit& unit, std::size_t parameter) {
  if (unit.replicated()) return "all ranks";
  std::vector<RankRange> slices;
  for (int rank = 0; rank < unit.layout.world(); ++rank) {
    slices.push_back({rank, unit.layout.slice(rank)});
  }
  return ranges_of(unit, parameter, slices);
}

// Where a parameter may be cut, unless that is anywhere, nowhere in the unit, or of no matter.
std::string atom_of(const FlatUnit& unit, std::size_t parameter) {
  if (unit.replicated()) return "";
  const layout::ParameterSpec& spec = unit.layout.parameters()[parameter].spec;
  const auto several = [&](std::string_view one) {
    return fmt::format("  atom {} {}{}", spec.group, one, spec.group == 1 ? "" : "s");
  };
  switch (spec.atom) {
    case layout::Atom::kRow: return several("row");
    case layout::Atom::kColumn: return several("column");
    case layout::Atom::kParameter: return "  atom parameter";
    default: return "";
  }
}

// Which ranks of the job update what, where replicas divide that.
std::string updaters(const FlatUnit& unit, std::size_t parameter) {
  if (!unit.divided()) return "";
  std::vector<RankRange> pieces;
  for (int rank = 0; rank < unit.layout.world(); ++rank) {
    int updater = rank;
    for (const layout::Range& piece : unit.pieces_of(rank)) {
      pieces.push_back({updater, piece});
      updater += unit.layout.world();
    }
  }
  return fmt::format("    updated by {}\n", ranges_of(unit, parameter, pieces));
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

std::string ignored(const Engine& engine) {
  std::string lines;
  for (const FoundParameter& found : engine.ignored()) {
    lines += fmt::format("  {}  [{}]  {}\n", fmt::join(found.names, " = "),
                         fmt::join(found.tensor.sizes(), ", "),
                         c10::toString(found.tensor.scalar_type()));
  }
  return lines.empty() ? "" : "ignored, every rank has its own\n" + lines;
}

}  // namespace

std::string describe(const Engine& engine) {
  std::string out = fmt::format("{} ranks: {} x shard {}\n", engine.mesh().all->size(),
                                engine.mesh().replicate->size(), engine.mesh().shard->size());
  for (const FlatUnit& unit : engine.units()) {
    out +=
        fmt::format("{}  {}  {}  {}{}{}\n", unit.name, to_string(unit.strategy),
                    text_of(unit.precision(),
                            [](at::ScalarType type) {
                              return std::string(base::to_string(to_dtype(type, "a unit")));
                            }),
                    base::format_bytes(unit.layout.flat_bytes()), whole_on(unit), updates_of(unit));
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const layout::PlacedParameter& placed = unit.layout.parameters()[i];
      out += fmt::format("  {}  [{}]  {}{}\n{}", fmt::join(unit.parameters[i].names, " = "),
                         fmt::join(placed.spec.shape, ", "), owners(unit, i), atom_of(unit, i),
                         updaters(unit, i));
    }
  }
  return out + ignored(engine);
}

}  // namespace fullshard::shard
