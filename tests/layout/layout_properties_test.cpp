#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "layout/arbitrary.h"

namespace fullshard::layout {
namespace {

// Said again here on purpose, in the plainest way: the tests must not trust the code's own notion.
std::int64_t atom_elements(const PlacedParameter& p) {
  if (p.spec.atom == Atom::kElement) return 1;
  if (p.spec.atom == Atom::kParameter || p.spec.atom == Atom::kUnit) return p.numel;
  const std::size_t along = p.spec.atom == Atom::kColumn && p.spec.shape.size() > 1 ? 1 : 0;
  std::int64_t row = 1;
  for (std::size_t d = 0; d < p.spec.shape.size(); ++d) row *= d == along ? 1 : p.spec.shape[d];
  return p.spec.shape.empty() ? 1 : row * p.spec.group;
}

// Calls `visit` with every index of a shape.
void for_each_index(const std::vector<std::int64_t>& shape,
                    const std::function<void(const std::vector<std::int64_t>&)>& visit) {
  std::vector<std::int64_t> index(shape.size(), 0);
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
  for (;;) {
    visit(index);
    std::size_t d = shape.size();
    while (d > 0 && ++index[d - 1] == shape[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

RC_GTEST_PROP(LayoutProperty, StridesReachEveryElementOnceWithTheCutDimensionOutermost, ()) {
  const UnitLayout layout = arbitrary::unit();
  for (const PlacedParameter& p : layout.parameters()) {
    const std::vector<std::int64_t> strides = p.strides();
    std::vector<bool> reached(static_cast<std::size_t>(p.numel));
    const std::size_t along = p.spec.atom == Atom::kColumn && strides.size() > 1 ? 1 : 0;
    for_each_index(p.spec.shape, [&](const std::vector<std::int64_t>& index) {
      const auto at =
          std::inner_product(index.begin(), index.end(), strides.begin(), std::int64_t{0});
      RC_ASSERT(!reached.at(static_cast<std::size_t>(at)));
      reached[static_cast<std::size_t>(at)] = true;
      if (strides.empty()) return;
      RC_ASSERT(index[along] == at / (p.numel / p.spec.shape[along]));
    });
    RC_ASSERT(std::find(reached.begin(), reached.end(), false) == reached.end());
  }
}

RC_GTEST_PROP(LayoutProperty, ARankOwnsWholeColumnGroups, ()) {
  const UnitLayout layout = arbitrary::unit();
  for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
    const PlacedParameter& p = layout.parameters()[i];
    if (p.spec.atom != Atom::kColumn || p.spec.shape.size() < 2) continue;
    std::map<std::int64_t, std::set<int>> owners;  // by group of columns
    const std::vector<std::int64_t> strides = p.strides();
    for_each_index(p.spec.shape, [&](const std::vector<std::int64_t>& index) {
      const auto at =
          std::inner_product(index.begin(), index.end(), strides.begin(), std::int64_t{0});
      owners[index[1] / p.spec.group].insert(layout.owner(i, at));
    });
    for (const auto& [group, ranks] : owners) RC_ASSERT(ranks.size() == 1U);
  }
}

bool divides_no_atom(const UnitLayout& layout, std::int64_t cut) {
  for (const PlacedParameter& p : layout.parameters()) {
    const bool inside = p.offset < cut && cut < p.offset + p.numel;
    if (inside && (cut - p.offset) % atom_elements(p) != 0) return false;
  }
  return true;
}

std::vector<std::int64_t> allowed_cuts(const UnitLayout& layout) {
  std::vector<std::int64_t> cuts;
  for (std::int64_t at = 0; at <= layout.flat_size(); at += layout.quantum()) {
    const bool at_an_end = at == 0 || at == layout.flat_size();
    const bool whole =
        !layout.parameters().empty() && layout.parameters().front().spec.atom == Atom::kUnit;
    if (whole ? at_an_end : divides_no_atom(layout, at)) cuts.push_back(at);
  }
  return cuts;
}

RC_GTEST_PROP(LayoutProperty, EveryElementIsOwnedExactlyOnce, ()) {
  const UnitLayout layout = arbitrary::unit();
  for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
    std::int64_t owned = 0;
    for (int rank = 0; rank < layout.world(); ++rank) {
      const Range shard = layout.shard(i, rank);
      if (shard.empty()) continue;
      RC_ASSERT(shard.begin == owned);
      owned = shard.end;
      for (std::int64_t e = shard.begin; e < shard.end; ++e) RC_ASSERT(layout.owner(i, e) == rank);
    }
    RC_ASSERT(owned == layout.parameters()[i].numel);
  }
}

RC_GTEST_PROP(LayoutProperty, SlicesCoverTheBufferInRankOrderFromAlignedOffsets, ()) {
  const UnitLayout layout = arbitrary::unit();
  std::int64_t at = 0;
  for (int rank = 0; rank < layout.world(); ++rank) {
    const Range slice = layout.slice(rank);
    RC_ASSERT(slice.begin == at);
    RC_ASSERT(slice.end >= slice.begin);
    RC_ASSERT(slice.begin * layout.element_bytes() % layout.options().alignment_bytes == 0);
    at = slice.end;
  }
  RC_ASSERT(at == layout.flat_size());
}

RC_GTEST_PROP(LayoutProperty, ParametersAreAlignedInOrderWithLessThanAQuantumBetween, ()) {
  const UnitLayout layout = arbitrary::unit();
  std::int64_t end = 0;
  std::int64_t payload = 0;
  for (const PlacedParameter& p : layout.parameters()) {
    RC_ASSERT(p.offset * layout.element_bytes() % layout.options().alignment_bytes == 0);
    RC_ASSERT(p.offset >= end);
    RC_ASSERT(p.offset - end < layout.quantum());
    end = p.offset + p.numel;
    payload += p.numel;
  }
  RC_ASSERT(layout.flat_size() >= end);
  RC_ASSERT(layout.flat_size() - end < layout.quantum());
  RC_ASSERT(layout.payload_size() == payload);
}

RC_GTEST_PROP(LayoutProperty, NoAtomIsDivided, ()) {
  const UnitLayout layout = arbitrary::unit();
  for (int rank = 0; rank < layout.world(); ++rank) {
    RC_ASSERT(divides_no_atom(layout, layout.slice(rank).begin));
  }
}

RC_GTEST_PROP(LayoutProperty, EveryCutIsTheAllowedOneNearestToTheFairShare, ()) {
  const UnitLayout layout = arbitrary::unit();
  std::vector<double> weights = layout.options().weights;
  if (weights.empty()) weights.assign(static_cast<std::size_t>(layout.world()), 1.0);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const std::vector<std::int64_t> allowed = allowed_cuts(layout);
  double share = 0;
  for (int rank = 0; rank < layout.world(); ++rank) {
    share += weights[static_cast<std::size_t>(rank)] / total;
    const double wanted = share * static_cast<double>(layout.flat_size());
    const double chosen = std::abs(static_cast<double>(layout.slice(rank).end) - wanted);
    for (const std::int64_t cut : allowed) {
      RC_ASSERT(chosen <= std::abs(static_cast<double>(cut) - wanted) + 1e-6);
    }
  }
}

RC_GTEST_PROP(LayoutProperty, EqualSharesOfElementsDifferByAtMostOneQuantum, ()) {
  const base::DType dtype = arbitrary::dtype();
  std::vector<ParameterSpec> specs = arbitrary::parameters(dtype);
  for (ParameterSpec& spec : specs) spec.atom = Atom::kElement;
  LayoutOptions options = arbitrary::options();
  options.weights.clear();
  const UnitLayout layout = UnitLayout::make("unit", specs, options);
  std::int64_t smallest = layout.flat_size();
  for (int rank = 0; rank < layout.world(); ++rank) {
    smallest = std::min(smallest, layout.slice(rank).size());
  }
  RC_ASSERT(layout.max_slice_size() - smallest <= layout.quantum());
}

RC_GTEST_PROP(LayoutProperty, ARankOfWeightZeroOwnsNothing, ()) {
  const UnitLayout layout = arbitrary::unit();
  RC_PRE(!layout.options().weights.empty());
  for (int rank = 0; rank < layout.world(); ++rank) {
    const double weight = layout.options().weights[static_cast<std::size_t>(rank)];
    RC_ASSERT(weight > 0 || layout.slice(rank).empty());
  }
}

RC_GTEST_PROP(LayoutProperty, SameInputGivesTheSameCuts, ()) {
  const auto specs = arbitrary::parameters(arbitrary::dtype());
  const auto options = arbitrary::options();
  const UnitLayout one = UnitLayout::make("unit", specs, options);
  const UnitLayout two = UnitLayout::make("unit", specs, options);
  for (int rank = 0; rank < one.world(); ++rank) RC_ASSERT(one.slice(rank) == two.slice(rank));
}

}  // namespace
}  // namespace fullshard::layout
