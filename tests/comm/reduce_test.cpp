#include "fullshard/comm/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "comm/half.h"
#include "comm/values.h"
#include "fullshard/base/error.h"

namespace fullshard::comm::testing {
namespace {

using base::DType;
using base::ErrorCode;

float as_float16(float value) {
  Float16 half;
  narrow(value, half);
  return widen(half);
}

TEST(HalfConversion, EveryFloat16SurvivesWideningAndNarrowing) {
  for (std::uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const Float16 half{static_cast<std::uint16_t>(bits)};
    Float16 back;
    narrow(widen(half), back);
    if (std::isnan(widen(half))) {
      EXPECT_TRUE(std::isnan(widen(back)));
    } else {
      ASSERT_EQ(back.bits, half.bits);
    }
  }
}

TEST(HalfConversion, EveryBFloat16SurvivesWideningAndNarrowing) {
  for (std::uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const BFloat16 half{static_cast<std::uint16_t>(bits)};
    BFloat16 back;
    narrow(widen(half), back);
    if (std::isnan(widen(half))) {
      EXPECT_TRUE(std::isnan(widen(back)));
    } else {
      ASSERT_EQ(back.bits, half.bits);
    }
  }
}

TEST(HalfConversion, Float16ValuesAreThoseOfTheFormat) {
  EXPECT_EQ(widen(Float16{0x3c00}), 1.0F);
  EXPECT_EQ(widen(Float16{0xc000}), -2.0F);
  EXPECT_EQ(widen(Float16{0x0001}), std::ldexp(1.0F, -24));
  EXPECT_EQ(widen(Float16{0x7bff}), 65504.0F);
  EXPECT_EQ(widen(Float16{0xfc00}), -std::numeric_limits<float>::infinity());
}

TEST(HalfConversion, NarrowingRoundsToNearestEven) {
  EXPECT_EQ(as_float16(1.0F + std::ldexp(1.0F, -11)), 1.0F);  // tie, down to even
  EXPECT_EQ(as_float16(1.0F + 3 * std::ldexp(1.0F, -11)),
            1.0F + std::ldexp(1.0F, -9));              // tie, up to even
  EXPECT_EQ(as_float16(std::ldexp(1.0F, -25)), 0.0F);  // tie at the bottom
  EXPECT_EQ(as_float16(1.5F * std::ldexp(1.0F, -24)), std::ldexp(1.0F, -23));
  EXPECT_EQ(as_float16(65519.0F), 65504.0F);
  EXPECT_EQ(as_float16(65520.0F), std::numeric_limits<float>::infinity());
  BFloat16 half;
  narrow(1.0F + std::ldexp(1.0F, -8), half);
  EXPECT_EQ(widen(half), 1.0F);
  narrow(1.0F + 3 * std::ldexp(1.0F, -8), half);
  EXPECT_EQ(widen(half), 1.0F + std::ldexp(1.0F, -6));
}

}  // namespace
}  // namespace fullshard::comm::testing
