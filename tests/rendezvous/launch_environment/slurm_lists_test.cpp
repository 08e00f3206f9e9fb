#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "fullshard/base/error.h"
#include "rendezvous/launch_environment/slurm.h"

namespace fullshard::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> hosts(std::string_view list) { return expand_node_list(list, "LIST"); }
std::vector<int> tasks(std::string_view counts) { return expand_task_counts(counts, "COUNTS"); }

void expect_refused(const std::function<void()>& call,
                    const ::testing::Matcher<std::string>& message) {
  try {
    call();
    ADD_FAILURE() << "was accepted";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kConfiguration);
    EXPECT_THAT(std::string(error.what()), message);
  }
}

TEST(SlurmNodeList, IsExpandedInItsOrder) {
  EXPECT_THAT(hosts("node[01-03,7],other"),
              ElementsAre("node01", "node02", "node03", "node7", "other"));
  EXPECT_THAT(hosts("alone"), ElementsAre("alone"));
  EXPECT_THAT(hosts("b,a"), ElementsAre("b", "a"));
  EXPECT_THAT(hosts("n[3]"), ElementsAre("n3"));
  EXPECT_THAT(hosts("n[9-11]-ib"), ElementsAre("n9-ib", "n10-ib", "n11-ib"));
  EXPECT_THAT(hosts("n[098-101]"), ElementsAre("n098", "n099", "n100", "n101"));
  EXPECT_THAT(hosts("gpu-a.example.org,c[1-2].x"),
              ElementsAre("gpu-a.example.org", "c1.x", "c2.x"));
}

TEST(SlurmNodeList, SeveralBracketsMultiply) {
  EXPECT_THAT(hosts("r[1-2]n[0,5]"), ElementsAre("r1n0", "r1n5", "r2n0", "r2n5"));
}

TEST(SlurmNodeList, RefusesWhatIsNone) {
  for (const auto* list : {"", "a,", ",a", "a,,b", "n[", "n[]", "n[1", "n[1-", "n[1-]", "n[-1]",
                           "n[a]", "n[2-1]", "n[1,]", "n]", "n[1]]", "n[1-9999999]",
                           "n[1-1000]n[1-1000]n[1-1000]", "n[1111111111111111111]"}) {
    expect_refused([&] { hosts(list); },
                   AllOf(HasSubstr("LIST"), HasSubstr("'" + std::string(list) + "'"),
                         HasSubstr("node[01-03,7],other")));
  }
}

TEST(SlurmTaskCounts, AreByNode) {
  EXPECT_THAT(tasks("4"), ElementsAre(4));
  EXPECT_THAT(tasks("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(tasks("1,12(x2)"), ElementsAre(1, 12, 12));
}

TEST(SlurmTaskCounts, RefuseWhatIsNone) {
  for (const auto* counts :
       {"", "0", "a", "2(x", "2(x)", "2(x3", "2(3)", "2(x0)", "1,,2", "2(x3)y", "1(x999999999)"}) {
    expect_refused([&] { tasks(counts); }, AllOf(HasSubstr("COUNTS"), HasSubstr("2(x3),1")));
  }
}

}  // namespace
}  // namespace fullshard::rendezvous
