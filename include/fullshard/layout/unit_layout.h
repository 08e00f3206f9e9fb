#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fullshard/base/dtype.h"
#include "fullshard/layout/parameter.h"
#include "fullshard/layout/range.h"

namespace fullshard::layout {

struct LayoutOptions {
  int world = 1;  ///< ranks that share the unit, at least 1

  /// Share of each rank, relative to the others; empty for equal shares. A rank of weight 0 owns
  /// nothing. Finite, not negative, not all zero.
  std::vector<double> weights = {};

  /// Every parameter and every slice starts at a multiple of this many bytes of the unit's dtype; a
  /// multiple of the element size. A buffer that holds the same unit in a narrower dtype is aligned
  /// in proportion: give 128 to have a bfloat16 copy of a float32 unit start at 64 bytes.
  std::int64_t alignment_bytes = 64;

  bool operator==(const LayoutOptions&) const = default;
};

/// The dimension that a parameter is cut along, which is the outermost one in the flat buffer: 1
/// for kColumn, else 0. A parameter of fewer than two dimensions is cut along its only one.
std::size_t cut_dimension(const ParameterSpec& spec);

/// A parameter with its place in the flat buffer of its unit. Its elements lie there in storage
/// order: row-major, with the dimension that it is cut along outermost, so that a matrix cut into
/// columns lies column by column and a rank's columns are contiguous.
struct PlacedParameter {
  ParameterSpec spec;
  std::int64_t offset = 0;  ///< first element in the flat buffer
  std::int64_t numel = 0;

  Range flat() const { return {offset, offset + numel}; }

  /// Elements from one index to the next in each dimension of spec.shape, in the flat buffer.
  std::vector<std::int64_t> strides() const;
};

/// One unit flattened into one buffer and cut into one contiguous slice a rank.
///
/// Parameters lie in the order given, each at an aligned offset, with padding between them where
/// sizes do not divide. Slices cover the buffer in rank order. A cut may fall only
///   - at the start of a parameter or at the end of the buffer, or
///   - inside a parameter at a multiple of lcm(atom, alignment) elements from its start,
/// so that "slices start at aligned offsets" and "no atom is divided" hold together for every
/// shape: rows of 16 floats may be cut anywhere, rows of 5 floats at every 16th row. Of the allowed
/// cuts, each rank takes the one nearest to its fair share. Where there are fewer allowed cuts than
/// ranks, some slices are empty. In a unit of Atom::kUnit only the two ends of the buffer are
/// allowed.
///
/// A value type: immutable, no torch, the same on every rank that passes the same input.
class UnitLayout {
 public:
  /// Throws base::Error(kInvalidArgument) that names the unit and the parameter for: two dtypes in
  /// one unit (both parameters named), Atom::kUnit for some parameters only, a name used twice, a
  /// bad shape, world, weight or alignment.
  static UnitLayout make(std::string unit, std::vector<ParameterSpec> parameters,
                         const LayoutOptions& options);

  const std::string& unit() const { return unit_; }
  const LayoutOptions& options() const { return options_; }
  int world() const { return options_.world; }
  base::DType dtype() const { return dtype_; }  ///< float32 for a unit without parameters

  const std::vector<PlacedParameter>& parameters() const { return parameters_; }

  /// Whether one rank owns everything because the parameters have Atom::kUnit. Which one follows
  /// from the weights: all on one rank name it.
  bool is_whole() const;

  /// Index of a parameter by its name. Throws base::Error(kInvalidArgument) when there is none.
  std::size_t index_of(std::string_view name) const;

  /// Elements of the flat buffer, padding included.
  std::int64_t flat_size() const { return cuts_.back(); }
  /// Elements of the parameters alone.
  std::int64_t payload_size() const { return payload_; }
  std::int64_t flat_bytes() const { return flat_size() * element_bytes(); }
  std::int64_t element_bytes() const { return static_cast<std::int64_t>(base::size_of(dtype_)); }
  /// Elements between two aligned offsets.
  std::int64_t quantum() const { return options_.alignment_bytes / element_bytes(); }

  /// The rank's part of the flat buffer, in flat elements.
  Range slice(int rank) const;
  std::int64_t slice_bytes(int rank) const { return slice(rank).size() * element_bytes(); }
  /// Elements of the largest slice: what a collective that wants equal parts pads to.
  std::int64_t max_slice_size() const;

  /// The elements of one parameter that a rank owns, in storage order from the parameter's own
  /// start; {0, 0} when it owns none.
  Range shard(std::size_t parameter, int rank) const;
  /// The rank that owns one element of a parameter, counted in storage order.
  int owner(std::size_t parameter, std::int64_t element) const;

 private:
  UnitLayout() = default;
  std::int64_t place(std::vector<ParameterSpec> specs);  // returns the flat size
  void cut(std::int64_t flat_size);

  std::string unit_;
  LayoutOptions options_;
  base::DType dtype_ = base::DType::kFloat32;
  std::vector<PlacedParameter> parameters_;
  std::vector<std::int64_t> cuts_;  // world + 1 flat offsets; slice r is [cuts_[r], cuts_[r + 1])
  std::int64_t payload_ = 0;
};

}  // namespace fullshard::layout
