#include "fullshard/bench/collectives_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/error_of.h"

namespace fullshard::bench {
namespace {

using ::testing::HasSubstr;

std::string error_text(const std::function<void()>& call) { return error_of(call).what(); }

TEST(CollectivesSpec, CrossesToTheChild) {
  const CollectivesSpec spec{
      .ranks = 3, .backend = "gloo", .operations = {"copy"}, .sizes = {5, 6}};
  const CollectivesSpec back = parse_collectives_spec(to_json(spec));
  EXPECT_EQ(to_json(back), to_json(spec));
  EXPECT_EQ(back.sizes, spec.sizes);
  EXPECT_EQ(error_of([] { parse_collectives_spec("{}"); }).code(), base::ErrorCode::kConfiguration);
}

TEST(CollectivesSpec, WhatCannotBeMeasuredIsNamed) {
  EXPECT_THAT(error_text([] { validate({.ranks = 1}); }), HasSubstr("--ranks: found 1"));
  EXPECT_THAT(error_text([] { validate({.operations = {"scan"}}); }), HasSubstr("\"scan\""));
  EXPECT_THAT(error_text([] { validate({.sizes = {}}); }), HasSubstr("--sizes"));
  EXPECT_THAT(error_text([] { validate({.sizes = {4096, 0}}); }), HasSubstr("found 0"));
}

TEST(CollectivesSpec, KnowsWhatHasToMove) {
  EXPECT_EQ(least_moved_bytes("copy", 100, 2), 200);
  EXPECT_EQ(least_moved_bytes("reduce_in_place", 100, 2), 150);  // two halves read, one written
  EXPECT_EQ(least_moved_bytes("reduce_scatter", 120, 4), 150);
  EXPECT_EQ(least_moved_bytes("barrier", 100, 2), 0);
  EXPECT_TRUE(has_operation("shm", "reduce_in_place"));
  EXPECT_FALSE(has_operation("gloo", "reduce_in_place"));
}

TEST(CollectiveTimes, AreFoundAmongOtherLines) {
  const std::vector<CollectiveTime> times = {{"barrier", 0, 1e-6}, {"copy", 64, 2e-6}};
  const auto found =
      parse_collective_times("noise\n" + to_json(times) + "\n{\"tok_s\": 3}\nmore\n", "a run");
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[1].operation, "copy");
  EXPECT_EQ(found[1].bytes, 64);
  EXPECT_DOUBLE_EQ(found[0].seconds, 1e-6);
  EXPECT_THAT(error_text([] { parse_collective_times("nothing", "a run"); }),
              HasSubstr("a run printed no times"));
}

}  // namespace
}  // namespace fullshard::bench
