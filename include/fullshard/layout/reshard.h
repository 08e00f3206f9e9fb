#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fullshard/layout/unit_layout.h"

namespace fullshard::layout {

/// A run of elements that moves from a rank of one layout to a rank of another. Units are indices
/// into the two sets of layouts; offsets count elements from the start of that rank's slice. The
/// run is contiguous in the target, and in the source too unless one side is cut into columns and
/// the other is not: then it is a row of a matrix on the one side and every n-th element on the
/// other.
struct Copy {
  std::string parameter;
  std::size_t from_unit = 0;
  int from_rank = 0;
  std::int64_t from_offset = 0;
  std::size_t to_unit = 0;
  int to_rank = 0;
  std::int64_t to_offset = 0;
  std::int64_t count = 0;        ///< elements, at least 1
  std::int64_t from_stride = 1;  ///< elements from one to the next in the source

  bool operator==(const Copy&) const = default;
};

/// The copies that turn one set of sharded units into another: different world, weights, alignment,
/// atoms, order, or grouping into units. Every element of every parameter is copied exactly once;
/// padding is not copied. Ordered by target unit, parameter and element. dtypes may differ, in
/// which case whoever copies converts. Throws base::Error(kInvalidArgument) naming the parameter
/// when a parameter is on one side only, twice on one side, or has another shape.
std::vector<Copy> reshard_map(std::span<const UnitLayout> from, std::span<const UnitLayout> to);

/// The same between two single units.
std::vector<Copy> reshard_map(const UnitLayout& from, const UnitLayout& to);

}  // namespace fullshard::layout
