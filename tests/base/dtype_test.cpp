#include "fullshard/base/dtype.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace fullshard::base {
namespace {

struct Expected {
  DType dtype;
  int value;
  std::size_t bytes;
  std::string_view name;
};

class DTypeTest : public testing::TestWithParam<Expected> {};

TEST_P(DTypeTest, HasItsValueSizeAndName) {
  EXPECT_EQ(static_cast<int>(GetParam().dtype), GetParam().value);
  EXPECT_EQ(size_of(GetParam().dtype), GetParam().bytes);
  EXPECT_EQ(to_string(GetParam().dtype), GetParam().name);
}

// Values are compared between processes, so they are part of the contract.
INSTANTIATE_TEST_SUITE_P(
    All, DTypeTest,
    testing::Values(Expected{DType::kFloat32, 0, 4, "float32"},
                    Expected{DType::kFloat64, 1, 8, "float64"},
                    Expected{DType::kBFloat16, 2, 2, "bfloat16"},
                    Expected{DType::kFloat16, 3, 2, "float16"},
                    Expected{DType::kInt8, 4, 1, "int8"}, Expected{DType::kUInt8, 5, 1, "uint8"},
                    Expected{DType::kInt16, 6, 2, "int16"}, Expected{DType::kInt32, 7, 4, "int32"},
                    Expected{DType::kInt64, 8, 8, "int64"}, Expected{DType::kBool, 9, 1, "bool"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(DType, AValueFromElsewhereIsNotReadPastTheTable) {
  EXPECT_THROW(size_of(static_cast<DType>(10)), std::out_of_range);
  EXPECT_THROW(to_string(static_cast<DType>(255)), std::out_of_range);
}

}  // namespace
}  // namespace fullshard::base
