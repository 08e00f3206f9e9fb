#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "fullshard/base/dtype.h"

namespace fullshard::shard {

/// Throws base::Error(kInvalidArgument) naming `what` for a type that cannot cross between ranks.
base::DType to_dtype(c10::ScalarType type, const std::string& what);

}  // namespace fullshard::shard
