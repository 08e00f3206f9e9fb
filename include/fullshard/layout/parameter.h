#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fullshard/base/dtype.h"

namespace fullshard::layout {

/// The smallest piece of a parameter that is never divided between two ranks.
enum class Atom {
  kElement,    ///< anywhere
  kRow,        ///< whole rows of the first dimension, `group` of them together
  kColumn,     ///< whole columns of the second dimension, `group` of them together
  kParameter,  ///< the whole parameter stays on one rank
  kUnit,       ///< the whole unit does; then all parameters of the unit have this atom
};

/// What a layout has to know of one parameter.
struct ParameterSpec {
  std::string name = {};                 ///< the user's dotted name, unique in its unit
  std::vector<std::int64_t> shape = {};  ///< empty for a scalar, which has one element
  base::DType dtype = base::DType::kFloat32;
  Atom atom = Atom::kElement;
  bool trainable = true;
  std::int64_t group = 1;  ///< for kRow and kColumn: rows of one head, one expert; at least 1

  bool operator==(const ParameterSpec&) const = default;
};

/// Elements of a shape. Throws base::Error(kInvalidArgument) naming `name` when an extent is
/// negative or the product does not fit in 63 bits.
std::int64_t numel(const std::string& name, const std::vector<std::int64_t>& shape);

}  // namespace fullshard::layout
