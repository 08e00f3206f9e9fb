#pragma once

#include <bit>
#include <cstdint>

namespace fullshard::comm {

// 16-bit floats as bit patterns, converted by integer arithmetic without branches, so that
// compilers vectorize the loops around them and every CPU gives the same bits. Narrowing rounds to
// nearest even.

struct BFloat16 {
  std::uint16_t bits;
};

struct Float16 {
  std::uint16_t bits;
};

[[gnu::always_inline]] inline float widen(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

[[gnu::always_inline]] inline float widen(Float16 value) {
  const std::uint32_t magnitude = value.bits & 0x7fffU;
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16;
  // Subnormal: mantissa * 2^-24, computed with normal fp32 numbers only, so flush-to-zero is
  // harmless.
  const std::uint32_t small = std::bit_cast<std::uint32_t>(
      static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F);
  const std::uint32_t normal = (magnitude << 13) + (112U << 23);
  const std::uint32_t special = (magnitude << 13) | 0x7f800000U;  // infinity and NaN
  std::uint32_t bits = magnitude < 0x0400U ? small : normal;
  bits = magnitude >= 0x7c00U ? special : bits;
  return std::bit_cast<float>(bits | sign);
}

[[gnu::always_inline]] inline void narrow(float value, BFloat16& out) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x0040U;
  out.bits = static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet_nan : rounded);
}

[[gnu::always_inline]] inline void narrow(float value, Float16& out) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  // Below 2^-14: adding 0.5 aligns the mantissa to units of 2^-24, and the addition does the
  // rounding.
  const std::uint32_t small =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - (126U << 23);
  const std::uint32_t normal =
      (magnitude - (112U << 23) + 0x0fffU + ((magnitude >> 13) & 1U)) >> 13;
  const std::uint32_t special = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;
  std::uint32_t result = magnitude < (113U << 23) ? small : normal;
  result = magnitude >= (143U << 23) ? special : result;
  out.bits = static_cast<std::uint16_t>(result | sign);
}

}  // namespace fullshard::comm
