#include "fullshard/base/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace fullshard::base {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string failure(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return error.what();
  }
  return "";
}

TEST(Check, SaysNothingWhenTheInvariantHolds) {
  EXPECT_EQ(failure([] {
              FULLSHARD_CHECK(true);
              FULLSHARD_CHECK_EQ(2 + 2, 4);
              FULLSHARD_CHECK_LE(4, 4);
              FULLSHARD_CHECK_LT(3, 4);
            }),
            "");
}

TEST(Check, NamesThePlaceAndTheCondition) {
  EXPECT_THAT(
      failure([] { FULLSHARD_CHECK(1 > 2); }),
      AllOf(HasSubstr("check_test.cpp"), HasSubstr("broken invariant"), HasSubstr("1 > 2")));
}

TEST(Check, PrintsBothValues) {
  const int owned = 7;
  EXPECT_THAT(failure([&] { FULLSHARD_CHECK_EQ(owned, 8); }),
              AllOf(HasSubstr("owned == 8"), HasSubstr("7 and 8")));
  EXPECT_THAT(failure([&] { FULLSHARD_CHECK_LE(owned, 6); }), HasSubstr("7 and 6"));
  EXPECT_THAT(failure([&] { FULLSHARD_CHECK_LT(owned, 7); }), HasSubstr("7 and 7"));
}

TEST(Check, EvaluatesItsArgumentsOnce) {
  int calls = 0;
  const auto next = [&] { return ++calls; };
  FULLSHARD_CHECK_EQ(next(), 1);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace fullshard::base
