#include "shard/dtype.h"

#include <fmt/format.h>

#include "fullshard/base/error.h"

namespace fullshard::shard {

base::DType to_dtype(c10::ScalarType type, const std::string& what) {
  switch (type) {
    case c10::ScalarType::Float: return base::DType::kFloat32;
    case c10::ScalarType::Double: return base::DType::kFloat64;
    case c10::ScalarType::BFloat16: return base::DType::kBFloat16;
    case c10::ScalarType::Half: return base::DType::kFloat16;
    case c10::ScalarType::Char: return base::DType::kInt8;
    case c10::ScalarType::Byte: return base::DType::kUInt8;
    case c10::ScalarType::Short: return base::DType::kInt16;
    case c10::ScalarType::Int: return base::DType::kInt32;
    case c10::ScalarType::Long: return base::DType::kInt64;
    case c10::ScalarType::Bool: return base::DType::kBool;
    default:
      throw base::Error(
          base::ErrorCode::kInvalidArgument,
          fmt::format(
              "'{}' has type {}; sharded models hold float, double, bfloat16, half, integer "
              "or bool tensors",
              what, c10::toString(type)));
  }
}

}  // namespace fullshard::shard
