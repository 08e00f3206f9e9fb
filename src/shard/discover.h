#pragma once

#include <vector>

#include "fullshard/shard/wrap_policy.h"
#include "shard/flat_unit.h"

namespace fullshard::shard {

/// Finds the parameters of a model and groups them into units: each belongs to the innermost picked
/// module that holds it, a tied one to the first that does; the rest to the root. Units of several
/// dtypes are divided by dtype. Units without parameters are left out; the root comes first.
/// Throws base::Error(kMisuse) naming a parameter that is sharded already, or kInvalidArgument
/// naming one that cannot be (sparse, not on the CPU, undefined).
std::vector<FoundUnit> discover_units(const NamedModule& root, const WrapPolicy& policy);

}  // namespace fullshard::shard
