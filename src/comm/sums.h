#pragma once

#include "fullshard/base/dtype.h"
#include "fullshard/comm/types.h"

namespace fullshard::comm {

inline bool is_half(base::DType dtype) {
  return dtype == base::DType::kFloat16 || dtype == base::DType::kBFloat16;
}

/// The type in which sums of parts travel until the last one is added: fp32 for fp16 and bf16, so
/// that a result is rounded once.
inline base::DType type_of_sums(base::DType dtype, ReduceOp op) {
  const bool adds = op == ReduceOp::kSum || op == ReduceOp::kMean;
  return is_half(dtype) && adds ? base::DType::kFloat32 : dtype;
}

}  // namespace fullshard::comm
