#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fullshard/layout/unit_layout.h"
#include "fullshard/residency/paged_storage.h"
#include "fullshard/shard/options.h"

namespace fullshard::shard {

/// What a parameter is in at different places; all the same without mixed precision.
struct Precision {
  at::ScalarType compute;  ///< gathered, seen by operators, and what autograd makes gradients in
  at::ScalarType shard;    ///< updated and saved, and what a shard's gradient is in
  at::ScalarType reduce;   ///< what gradients travel in
  auto operator<=>(const Precision&) const = default;
};

/// One parameter of the model as it was found, before sharding.
struct FoundParameter {
  at::Tensor tensor;               ///< the module's own tensor object; it stays the same object
  std::vector<std::string> names;  ///< dotted names; more than one when tied
  const ParameterRule* rule = nullptr;  ///< the option that holds for it, if any
  Precision precision = {};             ///< discovery decides it
};

/// Parameters that are flattened into one buffer: those of one picked unit that have the same
/// dtypes and strategy, are all cut or all left whole, and, when the model was sharded, were all
/// trainable or all frozen.
struct FoundUnit {
  std::string name;    ///< unique; that of the picked unit, and what is special where it is divided
  std::string picked;  ///< the modules of the picked unit; "(root)" for the root
  ShardingStrategy strategy = ShardingStrategy::FULL_SHARD;
  bool whole = false;  ///< owned by one rank, as layout::Atom::kUnit says
  std::vector<FoundParameter> parameters;
};

/// What sharding finds in a model.
struct FoundModel {
  std::vector<FoundUnit> units;
  std::vector<FoundParameter> ignored;  ///< in no unit, as a rule says
};

/// A sharded unit on one rank: its layout and where its memory lies.
struct FlatUnit {
  std::string name;
  std::string picked;  ///< as in FoundUnit
  ShardingStrategy strategy;
  layout::UnitLayout layout;
  std::vector<FoundParameter> parameters;  ///< in layout order
  std::vector<c10::intrusive_ptr<residency::PagedStorage>> storages;

  layout::Range held;  ///< flat elements this rank keeps; everything with NO_SHARD
  /// Those that it updates: all it holds, or of that its part where replicas divide the updates.
  layout::Range own;
  /// `own` of all ranks with one set of parameters after another: by shard rank, and then by
  /// replicate rank where replicas divide the updates.
  std::vector<layout::Range> pieces;
  std::byte* held_memory =
      nullptr;  ///< of `held`; inside what all ranks see, where they share memory
  /// Of `own`, in the shards' dtype; in what held_memory points to, where that is of the same.
  std::byte* shard_memory = nullptr;

  /// Every rank holds all of it, in memory of its own.
  bool replicated() const { return strategy == ShardingStrategy::NO_SHARD; }

  const Precision& precision() const { return parameters.front().precision; }
  at::ScalarType dtype() const { return precision().compute; }
  at::ScalarType shard_dtype() const { return precision().shard; }
  at::ScalarType reduce_dtype() const { return precision().reduce; }
  std::int64_t element_bytes() const { return layout.element_bytes(); }
  std::int64_t shard_element_bytes() const { return bytes_of(shard_dtype()); }
  std::int64_t reduce_element_bytes() const { return bytes_of(reduce_dtype()); }

  /// What loses nothing of gradients that are added up before they are reduced.
  at::ScalarType exact_dtype() const { return c10::promoteTypes(shard_dtype(), dtype()); }

  /// Whether what this rank updates is apart from what is gathered.
  bool has_masters() const { return dtype() != shard_dtype(); }

  void set_held_memory(std::byte* memory) {
    held_memory = memory;
    if (!has_masters()) shard_memory = held_at(own.begin);
  }

  /// Whether replicas divide the updates of what they hold alike.
  bool divided() const {
    return !replicated() && pieces.size() > static_cast<std::size_t>(layout.world());
  }

  /// The flat elements that each of the replicas of shard rank `rank` updates.
  std::span<const layout::Range> pieces_of(int rank) const {
    const std::size_t each = pieces.size() / static_cast<std::size_t>(layout.world());
    return std::span(pieces).subspan(static_cast<std::size_t>(rank) * each, each);
  }

  std::int64_t own_bytes() const { return own.size() * element_bytes(); }
  std::int64_t held_bytes() const { return held.size() * element_bytes(); }
  std::int64_t own_shard_bytes() const { return own.size() * shard_element_bytes(); }
  std::int64_t own_reduce_bytes() const { return own.size() * reduce_element_bytes(); }
  std::int64_t held_reduce_bytes() const { return held.size() * reduce_element_bytes(); }
  std::int64_t flat_reduce_bytes() const { return layout.flat_size() * reduce_element_bytes(); }

  /// Where this rank keeps a flat element that it holds, as it is gathered.
  std::byte* held_at(std::int64_t element) const {
    return held_memory + (element - held.begin) * element_bytes();
  }

  /// Where it updates a flat element that it owns.
  std::byte* shard_at(std::int64_t element) const {
    return shard_memory + (element - own.begin) * shard_element_bytes();
  }

  /// Flat elements of every rank of the shard group, for collectives.
  std::vector<std::int64_t> slice_sizes() const {
    std::vector<std::int64_t> sizes;
    for (int rank = 0; rank < layout.world(); ++rank) sizes.push_back(layout.slice(rank).size());
    return sizes;
  }

  /// Where what this rank owns of a parameter begins, in elements from the start of `own`.
  std::int64_t own_offset(std::size_t parameter) const { return offset_in(own, parameter); }

  /// The same of what it holds.
  std::int64_t held_offset(std::size_t parameter) const { return offset_in(held, parameter); }

  /// The dimension that a parameter is cut along; its elements lie in the unit's memory in the
  /// storage order that state::ShardedTensor explains.
  std::int64_t cut_dimension(std::size_t parameter) const {
    return static_cast<std::int64_t>(layout::cut_dimension(layout.parameters()[parameter].spec));
  }

  /// Elements of a parameter that this rank owns, in storage order from the parameter's start.
  layout::Range own_range(std::size_t parameter) const { return range_in(own, parameter); }

  /// The same of those that it holds.
  layout::Range held_range(std::size_t parameter) const { return range_in(held, parameter); }

  /// The same of any flat elements, and where they begin, in elements from the start of `some`.
  layout::Range range_in(layout::Range some, std::size_t parameter) const {
    const auto& placed = layout.parameters()[parameter];
    const layout::Range flat = intersect(some, placed.flat());
    if (flat.empty()) return {0, 0};
    return {flat.begin - placed.offset, flat.end - placed.offset};
  }

  std::int64_t offset_in(layout::Range some, std::size_t parameter) const {
    const layout::Range range = range_in(some, parameter);
    return range.empty() ? 0 : layout.parameters()[parameter].offset + range.begin - some.begin;
  }

  static std::int64_t bytes_of(at::ScalarType type) {
    return static_cast<std::int64_t>(c10::elementSize(type));
  }
};

/// What a module's parameter is made of while it is sharded.
inline at::Tensor paged_parameter(const FlatUnit& unit, std::size_t parameter) {
  const layout::PlacedParameter& placed = unit.layout.parameters()[parameter];
  return residency::make_paged_tensor(unit.storages[parameter], unit.dtype(), placed.spec.shape,
                                      placed.strides());
}

}  // namespace fullshard::shard
