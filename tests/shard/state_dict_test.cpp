#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fullshard/base/error.h"
#include "support/training.h"

namespace fullshard::shard {
namespace {

const testing::Problem kTask = testing::gpt_problem(17, 6, 2, /*tied=*/true);

TEST(StateDict, HoldsTheValuesUnderEveryName) {
  const auto plain = kTask.build();
  comm::run_as_threads(3, [&](comm::World& world) {
    const auto model = kTask.build();
    const auto sharded = fully_shard(model, world.mesh());
    const StateDict state = sharded.full_state_dict();
    EXPECT_TRUE(at::equal(state.at("table.weight"), plain->named_parameters()["table.weight"]));
    EXPECT_TRUE(state.at("table.weight").is_same(state.at("head.weight")));
    testing::expect_bitwise_equal(state, [&] {
      auto expected = testing::parameters_of(*plain);
      expected["head.weight"] = expected.at("table.weight");
      return expected;
    }());
  });
}

TEST(StateDict, Rank0OnlyLeavesTheOthersEmpty) {
  comm::run_as_threads(3, [&](comm::World& world) {
    const auto model = kTask.build();
    const auto sharded = fully_shard(model, world.mesh());
    EXPECT_EQ(sharded.full_state_dict(/*rank0_only=*/true).empty(), world.rank() != 0);
  });
}

TEST(StateDict, LoadingReplacesTheValuesOfEveryRank) {
  comm::run_as_threads(4, [&](comm::World& world) {
    const auto model = kTask.build();
    const auto sharded = fully_shard(model, world.mesh());
    StateDict state = sharded.full_state_dict();
    for (auto& [name, value] : state) {
      if (name != "head.weight") value.add_(1);  // tied: one tensor under two names
    }
    sharded.load_state_dict(state);
    testing::expect_bitwise_equal(sharded.full_state_dict(), state);
  });
}

TEST(StateDict, NonStrictReportsAndLoadsTheRest) {
  comm::World world = comm::single_rank();
  const auto model = kTask.build();
  const auto sharded = fully_shard(model, world.mesh());
  StateDict state = sharded.full_state_dict();
  state.erase("norm.bias");
  state["extra"] = at::zeros({1});
  state["norm.weight"].fill_(3);
  const LoadReport report = sharded.load_state_dict(state, /*strict=*/false);
  EXPECT_THAT(report.missing, ::testing::ElementsAre("norm.bias"));
  EXPECT_THAT(report.unexpected, ::testing::ElementsAre("extra"));
  EXPECT_EQ(sharded.full_state_dict().at("norm.weight")[0].item<double>(), 3);
}

}  // namespace
}  // namespace fullshard::shard
