#include "fullshard/shard/wrap_policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace fullshard::shard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Net : torch::nn::Module {
  Net() {
    register_module("embed", torch::nn::Linear(4, 4));
    torch::nn::Sequential stack;
    for (int i = 0; i < 3; ++i) stack->push_back(torch::nn::Linear(4, 4));
    register_module("stack", stack);
    register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
  }
};

std::vector<std::string> names(const WrapPolicy& policy) {
  std::vector<std::string> out;
  const ModelTree model = tree_of(std::make_shared<Net>());
  for (const UnitChoice& unit : policy(model.root)) {
    out.push_back(fmt::format("{}", fmt::join(unit, "+")));
  }
  return out;
}

TEST(WrapPolicy, ByClass) {
  EXPECT_THAT(names(wrap_modules<torch::nn::LayerNormImpl>()), ElementsAre("norm"));
  EXPECT_THAT(names(wrap_modules<torch::nn::LinearImpl>()),
              ElementsAre("embed", "stack.0", "stack.1", "stack.2"));
}

TEST(WrapPolicy, BySizeGroupsSmallChildrenIntoTheirParent) {
  // A Linear here has 20 elements, the stack 60.
  EXPECT_THAT(names(size_based(20)), ElementsAre("embed", "stack.0", "stack.1", "stack.2"));
  EXPECT_THAT(names(size_based(21)), ElementsAre("stack"));
  EXPECT_THAT(names(size_based(61)), IsEmpty());
}

TEST(WrapPolicy, AutomaticTakesTheMembersOfLayerLists) {
  EXPECT_THAT(names(automatic()), ElementsAre("stack.0", "stack.1", "stack.2"));
}

TEST(WrapPolicy, ByNameAndByClassName) {
  EXPECT_THAT(names(wrap_named({"stack.?", "norm"})),
              ElementsAre("stack.0", "stack.1", "stack.2", "norm"));
  EXPECT_THAT(names(wrap_classes({"LayerNormImpl"})), ElementsAre("norm"));
}

TEST(WrapPolicy, GroupsTakeTheirModulesOutOfOtherUnits) {
  EXPECT_THAT(names(with_groups(automatic(), {{"stack.2", "norm"}})),
              ElementsAre("stack.0", "stack.1", "stack.2+norm"));
}

TEST(WrapPolicy, RootOnlyPicksNothing) { EXPECT_THAT(names(root_only()), IsEmpty()); }

}  // namespace
}  // namespace fullshard::shard
