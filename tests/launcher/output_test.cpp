#include <gmock/gmock.h>

#include "launcher/support.h"

namespace fullshard::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Output : public ::testing::Test {
 protected:
  TestFolder folder;
};

TEST_F(Output, RankZeroWritesAsItIsAndOthersOnlyErrors) {
  const Outcome outcome = run(folder.shell(3, "echo out$RANK; echo err$RANK >&2"));
  EXPECT_EQ(outcome.out, "out0\n");
  EXPECT_THAT(outcome.err, HasSubstr("err0\n"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("[rank 0]")));
  EXPECT_THAT(outcome.err, HasSubstr("[rank 1] err1\n"));
  EXPECT_THAT(outcome.err, HasSubstr("[rank 2] err2\n"));
}

TEST_F(Output, LastWordsWithoutALineEndAreShown) {
  const Outcome outcome = run(folder.shell(2, "[ $RANK = 1 ] && printf 'a\\nb' >&2; exit 0"));
  EXPECT_EQ(outcome.err, "[rank 1] a\n[rank 1] b\n");
}

TEST_F(Output, MuchOutputIsShownInFullAndInOrder) {
  const Outcome outcome = run(folder.shell(2, "[ $RANK = 1 ] && seq 20000 >&2; exit 0"));
  std::string expected;
  for (int i = 1; i <= 20000; ++i) expected += "[rank 1] " + std::to_string(i) + "\n";
  EXPECT_EQ(outcome.err, expected);
}

TEST_F(Output, ALineWithoutEndIsShownInPieces) {
  const Outcome outcome =
      run(folder.shell(2, "[ $RANK = 1 ] && head -c 300000 /dev/zero | tr '\\0' x >&2; exit 0"));
  EXPECT_EQ(std::ranges::count(outcome.err, 'x'), 300000);
}

}  // namespace
}  // namespace fullshard::launcher
