#include "fullshard/layout/reshard.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "fullshard/base/error.h"

namespace fullshard::layout {
namespace {

/// Where one parameter lies in a set of units.
struct Location {
  const UnitLayout* layout = nullptr;
  std::size_t unit = 0;
  std::size_t parameter = 0;

  const PlacedParameter& placed() const { return layout->parameters()[parameter]; }
};

using Locations = std::unordered_map<std::string_view, Location>;

[[noreturn]] void refuse(std::string_view parameter, const std::string& what) {
  throw base::Error(base::ErrorCode::kInvalidArgument,
                    fmt::format("resharding parameter '{}': {}", parameter, what));
}

Locations locate(std::span<const UnitLayout> layouts, std::string_view side) {
  Locations locations;
  for (std::size_t unit = 0; unit < layouts.size(); ++unit) {
    const UnitLayout& layout = layouts[unit];
    for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
      const std::string& name = layout.parameters()[i].spec.name;
      const auto [at, inserted] = locations.try_emplace(name, Location{&layout, unit, i});
      if (inserted) continue;
      refuse(name, fmt::format("it is in units '{}' and '{}' of the {} layout; it must be in one",
                               at->second.layout->unit(), layout.unit(), side));
    }
  }
  return locations;
}

void check_same_shape(const Location& from, const Location& to) {
  const ParameterSpec& a = from.placed().spec;
  const ParameterSpec& b = to.placed().spec;
  if (a.shape == b.shape) return;
  refuse(a.name, fmt::format("its shape is ({}) in the source and ({}) in the target; they must "
                             "be the same",
                             fmt::join(a.shape, ", "), fmt::join(b.shape, ", ")));
}

/// The run of elements of a parameter, from `element` on, that lies on one rank.
struct Piece {
  int rank = 0;
  std::int64_t offset = 0;  // of `element` in the rank's slice
  std::int64_t end = 0;     // in the parameter
};

Piece piece_at(const Location& location, std::int64_t element) {
  const int rank = location.layout->owner(location.parameter, element);
  const std::int64_t flat = location.placed().offset + element;
  return {rank, flat - location.layout->slice(rank).begin,
          location.layout->shard(location.parameter, rank).end};
}

void append_copies(const Location& from, const Location& to, std::vector<Copy>& copies) {
  const PlacedParameter& placed = to.placed();
  for (std::int64_t element = 0; element < placed.numel;) {
    const Piece source = piece_at(from, element);
    const Piece target = piece_at(to, element);
    const std::int64_t count = std::min(source.end, target.end) - element;
    copies.push_back({placed.spec.name, from.unit, source.rank, source.offset, to.unit, target.rank,
                      target.offset, count});
    element += count;
  }
}

void check_nothing_left_behind(const Locations& sources, const Locations& targets) {
  std::string_view lost;
  for (const auto& [name, location] : sources) {
    if (!targets.contains(name) && (lost.empty() || name < lost)) lost = name;
  }
  if (!lost.empty()) refuse(lost, "it is in the source and not in the target");
}

}  // namespace

std::vector<Copy> reshard_map(std::span<const UnitLayout> from, std::span<const UnitLayout> to) {
  const Locations sources = locate(from, "source");
  const Locations targets = locate(to, "target");
  check_nothing_left_behind(sources, targets);
  std::vector<Copy> copies;
  for (std::size_t unit = 0; unit < to.size(); ++unit) {
    for (std::size_t i = 0; i < to[unit].parameters().size(); ++i) {
      const Location target{&to[unit], unit, i};
      const std::string& name = target.placed().spec.name;
      const auto source = sources.find(name);
      if (source == sources.end()) refuse(name, "it is in the target and not in the source");
      check_same_shape(source->second, target);
      append_copies(source->second, target, copies);
    }
  }
  return copies;
}

std::vector<Copy> reshard_map(const UnitLayout& from, const UnitLayout& to) {
  return reshard_map(std::span(&from, 1), std::span(&to, 1));
}

}  // namespace fullshard::layout
