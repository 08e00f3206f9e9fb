#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fullshard::base {

/// Element types that cross between ranks. Values are stable: they are compared between processes.
enum class DType : std::uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kBFloat16 = 2,
  kFloat16 = 3,
  kInt8 = 4,
  kUInt8 = 5,
  kInt16 = 6,
  kInt32 = 7,
  kInt64 = 8,
  kBool = 9,
};

/// Bytes of one element.
std::size_t size_of(DType dtype);

/// Name as PyTorch prints it without the prefix, for instance "bfloat16".
std::string_view to_string(DType dtype);

}  // namespace fullshard::base
