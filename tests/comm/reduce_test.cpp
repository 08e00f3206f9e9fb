#include "fullshard/comm/reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "comm/errors.h"
#include "comm/half.h"
#include "comm/values.h"
#include "comm/vector_instructions.h"

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

// What the documentation promises, element by element and without vectors.
double one_by_one(const std::vector<Values>& parts, std::int64_t i, ReduceOp op) {
  const DType dtype = parts[0].dtype();
  const bool wide = dtype == DType::kFloat64;
  const auto round = [&](double value) {
    return wide ? value : static_cast<double>(static_cast<float>(value));
  };
  double result = parts[0].get(i);
  for (std::size_t p = 1; p < parts.size(); ++p) {
    const double next = parts[p].get(i);
    if (op == ReduceOp::kMin) {
      result = std::min(result, next);
    } else if (op == ReduceOp::kMax) {
      result = std::max(result, next);
    } else {
      result = round(result + next);
    }
  }
  return op == ReduceOp::kMean ? round(result / static_cast<double>(parts.size())) : result;
}

// Values that need rounding: multiples of 1/8 up to 1000 plus a little, or small integers.
Values rough(DType dtype, std::uint32_t seed, std::int64_t count) {
  Values values(dtype, count);
  const bool floating = can_reduce(dtype, ReduceOp::kMean);
  std::uint32_t state = seed * 2654435761U + 12345U;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;
    const double draw = static_cast<double>(state >> 8) / 16777216.0;
    if (dtype == DType::kBool) {
      values.set(i, draw < 0.5 ? 0 : 1);
    } else if (floating) {
      values.set(i, (draw - 0.5) * 2000);
    } else {
      values.set(i, std::floor(draw * 9));
    }
  }
  return values;
}

std::vector<const void*> pointers(std::vector<Values>& parts) {
  std::vector<const void*> result;
  for (Values& part : parts) result.push_back(part.data());
  return result;
}

std::vector<Values> rough_parts(DType dtype, int parts, std::int64_t count) {
  std::vector<Values> result;
  for (int p = 0; p < parts; ++p)
    result.push_back(rough(dtype, static_cast<std::uint32_t>(p + 1), count));
  return result;
}

const std::vector<ReduceOp> kOps = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin,
                                    ReduceOp::kMax};

TEST(ReduceParts, EqualsTheSumTakenOneByOne) {
  for (const DType dtype : all_dtypes()) {
    for (const ReduceOp op : kOps) {
      if (!can_reduce(dtype, op)) continue;
      for (const int n : {1, 2, 3, 4, 5, 8, 9}) {
        for (const std::int64_t count : {0, 1, 7, 1024, 1025, 2500}) {
          auto parts = rough_parts(dtype, n, count);
          Values out(dtype, count);
          reduce_parts(pointers(parts), out.data(), count, dtype, op);
          Values expected(dtype, 1);
          for (std::int64_t i = 0; i < count; ++i) {
            expected.set(0, one_by_one(parts, i, op));
            ASSERT_EQ(out.get(i), expected.get(0))
                << base::to_string(dtype) << " op " << static_cast<int>(op) << " parts " << n
                << " element " << i;
          }
        }
      }
    }
  }
}

TEST(ReduceParts, TheOutputMayBeAnyOfTheParts) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt64}) {
    for (const int n : {1, 2, 3, 4, 6}) {
      auto parts = rough_parts(dtype, n, 3001);
      Values apart(dtype, 3001);
      reduce_parts(pointers(parts), apart.data(), 3001, dtype, ReduceOp::kSum);
      for (int target = 0; target < n; ++target) {
        auto copies = rough_parts(dtype, n, 3001);
        Values& out = copies[static_cast<std::size_t>(target)];
        reduce_parts(pointers(copies), out.data(), 3001, dtype, ReduceOp::kSum);
        EXPECT_EQ(out.bytes(), apart.bytes()) << n << " parts into part " << target;
      }
    }
  }
}

TEST(ReduceParts, BitsDoNotDependOnHowARangeIsCut) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16}) {
    auto parts = rough_parts(dtype, 3, 4000);
    Values whole(dtype, 4000);
    reduce_parts(pointers(parts), whole.data(), 4000, dtype, ReduceOp::kMean);
    Values pieces(dtype, 4000);
    for (std::int64_t begin = 0; begin < 4000; begin += 37) {
      const std::int64_t n = std::min<std::int64_t>(37, 4000 - begin);
      std::vector<const void*> at;
      for (Values& part : parts) at.push_back(part.part(begin, n).data);
      reduce_parts(at, pieces.part(begin, n).data, n, dtype, ReduceOp::kMean);
    }
    EXPECT_EQ(pieces.bytes(), whole.bytes());
  }
}

TEST(ReduceParts, BitsDoNotDependOnHowManyThreadsShareThem) {
  constexpr std::int64_t kCount = 1'000'003;
  auto parts = rough_parts(DType::kFloat32, 3, kCount);
  const auto reduced = [&](int threads) {
    set_reduction_threads(threads);
    std::vector<float> out(kCount, 0.5F);
    add_reduced_parts(pointers(parts), DType::kFloat32, out.data(), DType::kFloat32, kCount,
                      ReduceOp::kMean, 0.25);
    set_reduction_threads(1);
    return out;
  };
  const std::vector<float> alone = reduced(1);
  for (const int threads : {2, 3, 7, 64}) EXPECT_EQ(reduced(threads), alone) << threads;
}

TEST(ReduceParts, OnePartIsCopiedBitByBit) {
  for (const DType dtype : all_dtypes()) {
    Values part(dtype, 16);
    std::memset(part.data(), 0x7f, part.bytes().size());
    static_cast<unsigned char*>(part.data())[1] = 0xa5;  // among others a signalling NaN
    Values out(dtype, 16);
    const std::array<const void*, 1> parts = {part.data()};
    reduce_parts(parts, out.data(), 16, dtype, ReduceOp::kMax);
    EXPECT_EQ(out.bytes(), part.bytes());
  }
}

TEST(ReduceParts, LowPrecisionIsAddedInSinglePrecisionAndRoundedOnce) {
  // 1 + 3 * 2^-9 is lost when added in bfloat16; fp32 keeps it, and rounding once gives 1 + 2^-7.
  std::vector<Values> parts(4, Values(DType::kBFloat16, 1));
  parts[0].set(0, 1);
  for (std::size_t p = 1; p < 4; ++p) parts[p].set(0, std::ldexp(1.0, -9));
  Values low(DType::kBFloat16, 1);
  reduce_parts(pointers(parts), low.data(), 1, DType::kBFloat16, ReduceOp::kSum);
  EXPECT_EQ(low.get(0), 1 + std::ldexp(1.0, -7));
  Values high(DType::kFloat32, 1);
  reduce_parts_to(pointers(parts), DType::kBFloat16, high.data(), DType::kFloat32, 1,
                  ReduceOp::kSum);
  EXPECT_EQ(high.get(0), 1 + 3 * std::ldexp(1.0, -9));
}

TEST(ReduceParts, AMeanOfFloat16OverflowsAndUnderflowsNowhereOnTheWay) {
  std::vector<Values> parts(4, Values(DType::kFloat16, 2));
  for (Values& part : parts) {
    part.set(0, 30000);
    part.set(1, 1e-7);
  }
  const double tiny = parts[0].get(1);
  Values out(DType::kFloat16, 2);
  reduce_parts(pointers(parts), out.data(), 2, DType::kFloat16, ReduceOp::kMean);
  EXPECT_EQ(out.get(0), parts[0].get(0));
  EXPECT_EQ(out.get(1), tiny);
}

TEST(ReduceParts, IntegersWrapAround) {
  std::vector<Values> parts(2, Values(DType::kInt8, 1));
  for (Values& part : parts) part.set(0, 100);
  Values out(DType::kInt8, 1);
  reduce_parts(pointers(parts), out.data(), 1, DType::kInt8, ReduceOp::kSum);
  EXPECT_EQ(out.get(0), -56);
}

TEST(ReduceParts, MinAndMaxKeepNaN) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    for (const int where : {0, 1, 2}) {
      std::vector<Values> parts(3, Values(dtype, 1));
      parts[static_cast<std::size_t>(where)].set(0, std::numeric_limits<double>::quiet_NaN());
      for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
        Values out(dtype, 1);
        reduce_parts(pointers(parts), out.data(), 1, dtype, op);
        EXPECT_TRUE(std::isnan(out.get(0))) << base::to_string(dtype) << " NaN in part " << where;
      }
    }
  }
}

TEST(AddReducedParts, AccumulatesScaledReductions) {
  for (const int n : {1, 2, 3, 4}) {
    auto parts = rough_parts(DType::kBFloat16, n, 1500);
    Values out = rough(DType::kFloat32, 77, 1500);
    const Values before = out;
    add_reduced_parts(pointers(parts), DType::kBFloat16, out.data(), DType::kFloat32, 1500,
                      ReduceOp::kSum, 0.25);
    for (std::int64_t i = 0; i < 1500; ++i) {
      const float sum = static_cast<float>(one_by_one(parts, i, ReduceOp::kSum)) * 0.25F;
      ASSERT_EQ(out.get(i), static_cast<double>(static_cast<float>(before.get(i)) + sum));
    }
  }
}

TEST(AddReducedParts, AddsIntegersToo) {
  std::vector<Values> parts(3, Values(DType::kInt32, 2));
  for (Values& part : parts) part.set(1, 5);
  Values out(DType::kInt32, 2);
  out.set(0, 1);
  out.set(1, 2);
  add_reduced_parts(pointers(parts), DType::kInt32, out.data(), DType::kInt32, 2, ReduceOp::kSum);
  EXPECT_EQ(out.get(0), 1);
  EXPECT_EQ(out.get(1), 17);
}

TEST(AddReducedParts, ManySmallGradientsDoNotVanish) {
  // 64 micro-batches of bf16 gradients are added in fp32, in which none of them is lost.
  Values out(DType::kFloat32, 1);
  float expected = 0;
  for (std::uint32_t micro = 0; micro < 64; ++micro) {
    std::vector<Values> parts = {rough(DType::kBFloat16, micro, 1),
                                 rough(DType::kBFloat16, micro + 99, 1)};
    expected += static_cast<float>(one_by_one(parts, 0, ReduceOp::kSum));
    add_reduced_parts(pointers(parts), DType::kBFloat16, out.data(), DType::kFloat32, 1,
                      ReduceOp::kSum);
  }
  EXPECT_EQ(out.get(0), static_cast<double>(expected));
}

TEST(ReduceParts, RefusesWhatIsNotDefined) {
  std::vector<Values> parts(2, Values(DType::kFloat64, 4));  // large enough for every type
  Values out(DType::kFloat64, 4);
  const auto reduce = [&](DType dtype, DType out_dtype, ReduceOp op, double scale) {
    return expect_error(ErrorCode::kInvalidArgument, [&] {
      reduce_parts_to(pointers(parts), dtype, out.data(), out_dtype, 4, op, scale);
    });
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(std::string(reduce(DType::kInt64, DType::kInt64, ReduceOp::kMean, 1).what()),
              HasSubstr("int64 have no mean"));
  EXPECT_THAT(std::string(reduce(DType::kBool, DType::kBool, ReduceOp::kSum, 1).what()),
              HasSubstr("bool have no sum"));
  EXPECT_THAT(std::string(reduce(DType::kFloat32, DType::kFloat64, ReduceOp::kSum, 1).what()),
              HasSubstr("float32 into float64"));
  EXPECT_THAT(std::string(reduce(DType::kInt8, DType::kInt8, ReduceOp::kSum, 0.5).what()),
              HasSubstr("int8 cannot be scaled"));
}

TEST(VectorInstructions, TheEnvironmentMayAskForLess) {
  using enum VectorInstructions;
  EXPECT_EQ(choose_vector_instructions(kAvx512, ""), kAvx512);
  EXPECT_EQ(choose_vector_instructions(kAvx512, "avx2"), kAvx2);
  EXPECT_EQ(choose_vector_instructions(kAvx2, "portable"), kPortable);
  EXPECT_EQ(choose_vector_instructions(kPortable, "portable"), kPortable);
  EXPECT_THROW(choose_vector_instructions(kAvx2, "avx512"), base::Error);
  EXPECT_THROW(choose_vector_instructions(kAvx512, "sse9"), base::Error);
}

}  // namespace
}  // namespace fullshard::comm::testing
