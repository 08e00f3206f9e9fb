#include "fullshard/residency/unit_uses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace fullshard::residency {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

void use(UnitUses& uses, const std::vector<int>& units) {
  for (const int unit : units) uses.note(unit);
}

TEST(UnitUses, KeepsTheOrderOfFirstUses) {
  UnitUses uses(4);
  EXPECT_THAT(uses.now(), IsEmpty());
  use(uses, {2, 0, 2, 3, 0});
  EXPECT_THAT(uses.now(), ElementsAre(2, 0, 3));
  EXPECT_THAT(uses.before(), IsEmpty());
}

TEST(UnitUses, AStepIsTheLastOneUntilTheNextBegins) {
  UnitUses uses(3);
  use(uses, {1, 0});
  uses.end_step();
  uses.end_step();
  EXPECT_THAT(uses.now(), ElementsAre(1, 0));
  use(uses, {2, 0});
  EXPECT_THAT(uses.now(), ElementsAre(2, 0));
  EXPECT_THAT(uses.before(), ElementsAre(1, 0));
  uses.end_step();
  use(uses, {2});
  EXPECT_THAT(uses.now(), ElementsAre(2));
  EXPECT_THAT(uses.before(), ElementsAre(2, 0));
}

}  // namespace
}  // namespace fullshard::residency
