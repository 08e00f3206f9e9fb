#pragma once

#include <vector>

#include "fullshard/shard/options.h"
#include "shard/flat_unit.h"

namespace fullshard::shard {

/// Finds the parameters of a model and groups them into units: each belongs to the innermost picked
/// module that holds it, a tied one to the first that does; the rest to the root. Units of several
/// dtypes or strategies, or with frozen and trainable parameters, are divided. Units without
/// parameters are left out; the root comes first. Ignored parameters are in none. Rules are
/// referred to, not copied. Throws base::Error: kMisuse naming a parameter that is sharded already;
/// kInvalidArgument naming one that cannot be (sparse, not on the CPU, converted by a rule but not
/// of floating point), a picked module that is none, or a rule that matches nothing.
FoundModel discover(const ModelNode& root, const FullyShardOptions& options);

}  // namespace fullshard::shard
