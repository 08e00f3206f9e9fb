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

/// One parameter of the model as it was found, before sharding.
struct FoundParameter {
  at::Tensor tensor;               ///< the module's own tensor object; it stays the same object
  std::vector<std::string> names;  ///< dotted names; more than one when tied
  const ParameterRule* rule = nullptr;  ///< the option that holds for it, if any

  /// What it is stored in when sharded.
  at::ScalarType dtype() const {
    return rule != nullptr && rule->dtype ? *rule->dtype : tensor.scalar_type();
  }
};

/// Parameters that are flattened into one buffer: those of one picked unit that have the same dtype
/// and strategy, are all cut or all left whole, and, when the model was sharded, were all trainable
/// or all frozen.
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

  /// Every rank holds all of it, in memory of its own.
  bool replicated() const { return strategy == ShardingStrategy::NO_SHARD; }

  at::ScalarType dtype() const { return parameters.front().dtype(); }
  std::int64_t element_bytes() const { return layout.element_bytes(); }

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

  /// Where this rank keeps a flat element that it holds.
  std::byte* own_at(std::int64_t element) const {
    return held_memory + (element - held.begin) * element_bytes();
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
};

}  // namespace fullshard::shard
