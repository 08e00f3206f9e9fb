#include "layout/cut_points.h"

#include <algorithm>
#include <numeric>

#include "fullshard/base/check.h"

namespace fullshard::layout {
namespace {

std::int64_t atom_size(const ParameterSpec& spec, std::int64_t numel) {
  switch (spec.atom) {
    case Atom::kElement: return 1;
    case Atom::kParameter:
    case Atom::kUnit: return numel;
    case Atom::kRow:
    case Atom::kColumn: break;
  }
  if (spec.shape.empty()) return 1;
  const std::int64_t slices = spec.shape[cut_dimension(spec)];
  return numel / slices * std::min(spec.group, slices);
}

}  // namespace

std::int64_t cut_step(const ParameterSpec& spec, std::int64_t numel, std::int64_t quantum) {
  if (numel == 0) return quantum;
  const std::int64_t atom = atom_size(spec, numel);
  const std::int64_t repeats = quantum / std::gcd(atom, quantum);
  // Compared by division because the product of a large atom and the alignment may not fit.
  return repeats > numel / atom ? numel : atom * repeats;
}

std::int64_t nearest_cut(std::span<const PlacedParameter> parameters, std::int64_t flat_size,
                         std::int64_t quantum, double wanted) {
  if (parameters.empty() || wanted >= static_cast<double>(flat_size)) return flat_size;
  // The last parameter that starts at or before `wanted`: the first one starts at 0.
  const auto next = std::upper_bound(
      parameters.begin(), parameters.end(), wanted,
      [](double x, const PlacedParameter& p) { return x < static_cast<double>(p.offset); });
  const PlacedParameter& inside = *std::prev(next);
  const std::int64_t end = next == parameters.end() ? flat_size : next->offset;
  const std::int64_t step = cut_step(inside.spec, inside.numel, quantum);
  FULLSHARD_CHECK_LT(0, step);
  const std::int64_t last = inside.numel > 0 ? (inside.numel - 1) / step : 0;
  const auto into = static_cast<std::int64_t>(wanted) - inside.offset;
  const std::int64_t index = std::min(into / step, last);
  const std::int64_t before = inside.offset + index * step;
  const std::int64_t after = index == last ? end : before + step;
  const bool nearer_before =
      wanted - static_cast<double>(before) < static_cast<double>(after) - wanted;
  return nearer_before ? before : after;
}

}  // namespace fullshard::layout
