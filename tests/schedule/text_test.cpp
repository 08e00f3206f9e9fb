#include "fullshard/schedule/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "fullshard/base/error.h"
#include "schedule/arbitrary.h"

namespace fullshard::schedule {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::string_view kExample =
    "fullshard-schedule 1\n"
    "units 6\n"
    "forward 0\n"
    "forward 1 evict 0 ahead +2\n"
    "stay 3 +4 5\n"
    "recompute 2\n"
    "backward 2\n"
    "end evict 1 2\n";

TEST(ScheduleText, ReadsAsTheHeaderSays) {
  const Schedule plan = {6,
                         {{{0, Phase::kForward}, {}, {}},
                          {{1, Phase::kForward}, {0}, {{2, true}}},
                          {{2, Phase::kRecompute}, {}, {}},
                          {{2, Phase::kBackward}, {}, {}}},
                         {1, 2},
                         {{2, 3, false}, {2, 4, true}, {2, 5, false}}};
  EXPECT_EQ(to_text(plan), kExample);
  EXPECT_EQ(parse(kExample), plan);
}

RC_GTEST_PROP(ScheduleTextProperty, PlansComeBackAsTheyWere, ()) {
  const auto bytes = arbitrary::unit_bytes();
  Schedule plan = make_schedule(arbitrary::trace(static_cast<int>(bytes.size())), bytes,
                                arbitrary::options(bytes));
  for (std::size_t after = 0; after <= plan.events.size(); ++after) {
    for (auto left = arbitrary::between(0, 3); left > 0; --left) {
      plan.staying.push_back({after, arbitrary::between(0, 9), *rc::gen::arbitrary<bool>()});
    }
  }
  RC_ASSERT(parse(to_text(plan)) == plan);
}

// A text with one piece cut out and another put in is read or refused, never anything else.
RC_GTEST_PROP(ScheduleTextProperty, DamagedTextIsReadOrRefused, ()) {
  std::string text(kExample);
  const auto at = arbitrary::between<std::size_t>(0, text.size());
  const auto length = arbitrary::between<std::size_t>(0, text.size());
  text.replace(
      at, length,
      *rc::gen::element<std::string>("", " ", "\n", "-1", "end", "evict", "stay", "7", "+"));
  try {
    const Schedule plan = parse(text);
    RC_ASSERT(parse(to_text(plan)) == plan);
  } catch (const base::Error& error) {
    RC_ASSERT(error.code() == base::ErrorCode::kInvalidArgument);
  }
}

std::string refusal(std::string_view text) {
  try {
    parse(text);
  } catch (const base::Error& error) {
    return error.what();
  }
  return "";
}

TEST(ScheduleTextRefuses, WithTheLineAndWhatShouldStandThere) {
  const std::string head = "fullshard-schedule 1\nunits 3\n";
  EXPECT_THAT(refusal(""), HasSubstr("'fullshard-schedule 1' should be"));
  EXPECT_THAT(refusal("fullshard-schedule 2\n"), AllOf(HasSubstr("line 1"), HasSubstr("2'")));
  EXPECT_THAT(refusal("fullshard-schedule 1\nforward 0\n"), HasSubstr("line 2: 'units N'"));
  EXPECT_THAT(refusal("fullshard-schedule 1\nunits x\n"), HasSubstr("'x' where a number of units"));
  EXPECT_THAT(refusal(head + "sideways 0\nend\n"),
              AllOf(HasSubstr("line 3"), HasSubstr("sideways")));
  EXPECT_THAT(refusal(head + "forward\nend\n"), HasSubstr("'' where a unit should be"));
  EXPECT_THAT(refusal(head + "forward 0 drop 1\nend\n"),
              HasSubstr("'drop' where 'with', 'evict', 'ahead'"));
  EXPECT_THAT(refusal(head + "forward 0 evict\nend\n"), HasSubstr("'' where a unit should be"));
  EXPECT_THAT(refusal(head + "forward -1\nend\n"), HasSubstr("'-1' where a unit"));
  EXPECT_THAT(refusal(head + "forward 0 ahead 1 evict 2\nend\n"), HasSubstr("line's end"));
  EXPECT_THAT(refusal(head + "forward 0 ahead 1 +\nend\n"), HasSubstr("'' where a unit"));
  EXPECT_THAT(refusal(head + "forward 0 evict +1\nend\n"), HasSubstr("'+1' where a unit"));
  EXPECT_THAT(refusal(head + "stay\nend\n"), HasSubstr("line 3: '' where a unit"));
  EXPECT_THAT(refusal(head + "stay 1 evict 2\nend\n"), HasSubstr("'evict' where the line should"));
  EXPECT_THAT(refusal(head + "forward 0\n"), HasSubstr("without an 'end' line"));
  EXPECT_THAT(refusal(head + "forward 0"), HasSubstr("line 3: the line does not end"));
  EXPECT_THAT(refusal(head + "end\nforward 0\n"), HasSubstr("text after the 'end' line"));
}

}  // namespace
}  // namespace fullshard::schedule
