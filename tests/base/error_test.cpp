#include "fullshard/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace fullshard::base {
namespace {

constexpr ErrorCode kCodes[] = {ErrorCode::kInvalidArgument, ErrorCode::kConfiguration,
                                ErrorCode::kUsage,           ErrorCode::kMisuse,
                                ErrorCode::kTimeout,         ErrorCode::kPeerLost,
                                ErrorCode::kMismatch,        ErrorCode::kFile,
                                ErrorCode::kSystem,          ErrorCode::kInternal};

TEST(Error, CarriesCodeMessageAndRank) {
  const Error error(ErrorCode::kTimeout, "rank 2 is missing", 2);
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_STREQ(error.what(), "rank 2 is missing");
  EXPECT_EQ(error.rank(), 2);
}

TEST(Error, TheRankIsUnknownUnlessSaid) { EXPECT_EQ(Error(ErrorCode::kFile, "gone").rank(), -1); }

TEST(Error, IsCaughtAsAStandardException) {
  EXPECT_THROW(throw Error(ErrorCode::kSystem, "refused"), std::runtime_error);
}

TEST(ErrorCode, EveryCodeHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (const ErrorCode code : kCodes) {
    EXPECT_NE(to_string(code), "unknown");
    EXPECT_TRUE(names.insert(to_string(code)).second) << to_string(code);
  }
  EXPECT_EQ(to_string(ErrorCode::kTimeout), "timeout");
  EXPECT_EQ(to_string(ErrorCode::kPeerLost), "peer lost");
}

TEST(ExitCode, IsTwoForUsageAndConfigurationAndOneForTheRest) {
  for (const ErrorCode code : kCodes) {
    const bool user = code == ErrorCode::kUsage || code == ErrorCode::kConfiguration;
    EXPECT_EQ(exit_code(Error(code, "")), user ? 2 : 1) << to_string(code);
  }
}

}  // namespace
}  // namespace fullshard::base
