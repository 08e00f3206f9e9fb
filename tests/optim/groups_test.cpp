#include "fullshard/optim/groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fullshard/base/error.h"

namespace fullshard::optim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<state::ShardedTensor> parameters() {
  const auto named = [](const char* name, std::vector<std::int64_t> shape) {
    state::ShardedTensor tensor;
    tensor.name = name;
    tensor.global_shape = std::move(shape);
    return tensor;
  };
  return {named("table.weight", {7, 4}),
          named("blocks.0.norm.weight", {4}),
          named("blocks.0.up.weight", {8, 4}),
          named("blocks.0.up.bias", {8}),
          named("temperature", {}),
          named("wide_norm.weight", {3, 4})};
}

std::string error_of(const std::vector<GroupRule>& rules) {
  try {
    assign_groups(parameters(), rules);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kConfiguration);
    return error.what();
  }
  return "no error";
}

GroupRule rule(const char* pattern) {
  GroupRule made;
  made.pattern = pattern;
  return made;
}

TEST(Groups, TheFirstRuleThatTakesAParameterDecides) {
  const auto all = parameters();
  const std::vector<GroupRule> rules = {rule("blocks.?.up.*"), rule("blocks.*")};
  EXPECT_THAT(assign_groups(all, rules), ElementsAre(2, 1, 0, 0, 2, 2));
}

TEST(Groups, NoRuleLeavesAllInTheLastGroup) {
  EXPECT_THAT(assign_groups(parameters(), {}), ElementsAre(0, 0, 0, 0, 0, 0));
}

TEST(Groups, DefaultsSpareNormsBiasesAndFlatParametersFromDecay) {
  const auto rules = default_no_decay_rules();
  const auto groups = assign_groups(parameters(), rules);
  std::vector<bool> decays;
  for (const std::size_t group : groups) decays.push_back(group == rules.size());
  EXPECT_THAT(decays, ElementsAre(true, false, true, false, false, false));
  for (const auto& made : rules) EXPECT_EQ(made.weight_decay, 0.0);
}

TEST(Groups, DefaultsNeedNotMatch) {
  EXPECT_TRUE(assign_groups({}, default_no_decay_rules()).empty());
}

TEST(Groups, APatternThatMatchesNothingIsNamedWithTheNearestParameter) {
  const std::string message = error_of({rule("blocks.0.upp.weight")});
  EXPECT_THAT(message, HasSubstr("\"blocks.0.upp.weight\" matches no parameter"));
  EXPECT_THAT(message, HasSubstr("did you mean \"blocks.0.up.weight\"?"));
  EXPECT_THAT(error_of({rule("*tabel.weight")}), HasSubstr("\"table.weight\""));
  EXPECT_THAT(error_of({rule("zzz")}), HasSubstr("names look like \"table.weight\""));
}

}  // namespace
}  // namespace fullshard::optim
