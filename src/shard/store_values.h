#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "shard/flat_unit.h"

namespace fullshard::shard {

/// Copies a unit's parameters, as they were found, to `whole`, all of its flat elements.
void store_whole(const FlatUnit& unit, const at::Tensor& whole);
/// The same to memory that is in the dtype of gathers.
void store_whole(const FlatUnit& unit, std::byte* whole);

/// A parameter's elements in a tensor of all flat elements of its unit, in the parameter's shape.
at::Tensor parameter_in(const FlatUnit& unit, const at::Tensor& whole, std::size_t parameter);

/// Copies what this rank owns of `values`, a whole parameter of any shape, to its shard.
void store_own(const FlatUnit& unit, std::size_t parameter, const at::Tensor& values);

/// The same for all of a unit's parameters, as they were found.
void store_own(const FlatUnit& unit);

}  // namespace fullshard::shard
