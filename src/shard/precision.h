#pragma once

#include <functional>
#include <string>

#include "fullshard/shard/mixed_precision.h"
#include "fullshard/shard/model_tree.h"
#include "shard/flat_unit.h"

namespace fullshard::shard {

/// For people: what is computed in, and shards and reductions where that is another.
std::string text_of(const Precision& precision,
                    const std::function<std::string(at::ScalarType)>& name);

/// Whether what is in the module is left as it is, because of its class.
bool keeps_precision_in(const ModelNode& node, const MixedPrecision& mixed);

/// Converts a model's buffers to buffer_dtype, if that is set.
void convert_buffers(const ModelTree& model, const MixedPrecision& mixed);

}  // namespace fullshard::shard
