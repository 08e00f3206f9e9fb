#pragma once

#include <fmt/format.h>
#include <rapidcheck.h>

#include <utility>
#include <vector>

#include "fullshard/layout/unit_layout.h"

// Random units for the property tests: scalars, empty parameters, ragged rows, every atom, worlds
// from 1 to 17. To be called inside a property.
namespace fullshard::layout::arbitrary {

/// Uniform in [low, high) from the first case on; inRange by itself begins with tiny ranges.
template <typename T>
rc::Gen<T> between(T low, T high) {
  return rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(low, high));
}

inline std::vector<std::int64_t> shape() {
  const auto dimensions = *between<std::size_t>(0, 4);
  return *rc::gen::container<std::vector<std::int64_t>>(
      dimensions, rc::gen::weightedOneOf<std::int64_t>(
                      {{1, rc::gen::just<std::int64_t>(0)}, {9, between<std::int64_t>(1, 24)}}));
}

inline ParameterSpec parameter(std::size_t index, base::DType dtype) {
  ParameterSpec spec;
  spec.name = fmt::format("p{}", index);
  spec.shape = shape();
  spec.dtype = dtype;
  spec.atom = *rc::gen::element(Atom::kElement, Atom::kRow, Atom::kColumn, Atom::kParameter);
  spec.group = *between<std::int64_t>(1, 6);
  return spec;
}

inline base::DType dtype() {
  return *rc::gen::element(base::DType::kFloat64, base::DType::kFloat32, base::DType::kBFloat16,
                           base::DType::kInt8);
}

inline std::vector<ParameterSpec> parameters(base::DType of) {
  std::vector<ParameterSpec> specs;
  const auto count = *between<std::size_t>(0, 9);
  for (std::size_t i = 0; i < count; ++i) specs.push_back(parameter(i, of));
  if (*between(0, 5) == 0) {
    for (ParameterSpec& spec : specs) spec.atom = Atom::kUnit;
  }
  return specs;
}

inline std::vector<double> weights(int world) {
  if (*rc::gen::arbitrary<bool>()) return {};
  std::vector<double> shares;
  for (int rank = 0; rank < world; ++rank) shares.push_back(*between(0, 5) / 2.0);
  const auto somebody = static_cast<std::size_t>(*between(0, world));
  shares[somebody] += 1;
  return shares;
}

inline LayoutOptions options() {
  LayoutOptions made;
  made.world = *between(1, 18);
  made.weights = weights(made.world);
  made.alignment_bytes = *rc::gen::element<std::int64_t>(8, 64, 96, 128);
  return made;
}

inline UnitLayout unit() { return UnitLayout::make("unit", parameters(dtype()), options()); }

}  // namespace fullshard::layout::arbitrary
