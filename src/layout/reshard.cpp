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

/// A parameter's first two dimensions as they lie in the source of a map and in its target, where
/// they may be exchanged. `inner` is everything behind them, which is contiguous in both.
struct Order {
  bool same = true;
  std::int64_t target_inner = 0;  // extent of the second of the two in the target's order
  std::int64_t source_inner = 0;
  std::int64_t inner = 1;

  Order(const ParameterSpec& source, const ParameterSpec& target) {
    same = cut_dimension(source) == cut_dimension(target);
    if (same) return;
    target_inner = target.shape[1 - cut_dimension(target)];
    source_inner = source.shape[1 - cut_dimension(source)];
    for (std::size_t d = 2; d < target.shape.size(); ++d) inner *= target.shape[d];
  }

  /// Where the target's element lies in the source's order.
  std::int64_t in_source(std::int64_t element) const {
    if (same) return element;
    const std::int64_t first = element / inner / target_inner;
    const std::int64_t second = element / inner % target_inner;
    return (second * source_inner + first) * inner + element % inner;
  }

  /// Elements from `element` on that lie one source_stride() apart in the source.
  std::int64_t run(std::int64_t element) const {
    if (inner > 1) return inner - element % inner;
    return target_inner - element % target_inner;
  }

  std::int64_t source_stride() const { return same || inner > 1 ? 1 : source_inner; }
};

void append_copies(const Location& from, const Location& to, std::vector<Copy>& copies) {
  const PlacedParameter& placed = to.placed();
  const Order order(from.placed().spec, placed.spec);
  const std::int64_t stride = order.source_stride();
  for (std::int64_t element = 0; element < placed.numel;) {
    const std::int64_t in_source = order.in_source(element);
    const Piece source = piece_at(from, in_source);
    const Piece target = piece_at(to, element);
    const std::int64_t on_source = (source.end - in_source + stride - 1) / stride;
    std::int64_t count = std::min(on_source, target.end - element);
    if (!order.same) count = std::min(count, order.run(element));
    copies.push_back({placed.spec.name, from.unit, source.rank, source.offset, to.unit, target.rank,
                      target.offset, count, stride});
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
