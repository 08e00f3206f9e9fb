#pragma once

#include <cstddef>

#include "shard/flat_unit.h"

namespace fullshard::shard {

/// Copies a unit's parameters, as they were found, to `whole`, the memory of the whole unit.
void store_whole(const FlatUnit& unit, std::byte* whole);

/// Copies what this rank owns of `values`, a whole parameter of any shape, to its own memory.
void store_own(const FlatUnit& unit, std::size_t parameter, const at::Tensor& values);

/// The same for all of a unit's parameters, as they were found.
void store_own(const FlatUnit& unit);

}  // namespace fullshard::shard
