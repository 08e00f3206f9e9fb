#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fullshard/base/error.h"
#include "support/networks.h"
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

// A tied one and two others.
const FullyShardOptions kIgnoring{
    .rules = {{.pattern = "table.*", .ignore = true}, {.pattern = "norm.*", .ignore = true}}};

TEST(StateDict, HoldsIgnoredParametersAsRank0HasThem) {
  const StateDict expected = testing::parameters_of(*kTask.build());
  testing::run_both_ways(2, [&](comm::World& world) {
    const auto model = kTask.build();
    const auto sharded = fully_shard(model, world.mesh(), kIgnoring);
    if (world.rank() == 1) {
      const at::NoGradGuard no_grad;
      model->named_parameters()["norm.weight"].fill_(7);
    }
    StateDict state = sharded.full_state_dict();
    EXPECT_TRUE(state.at("table.weight").is_same(state.at("head.weight")));
    EXPECT_FALSE(state.at("norm.weight").requires_grad());
    testing::expect_bitwise_equal(state, expected);
    state = sharded.full_state_dict(/*rank0_only=*/true);
    EXPECT_EQ(state.contains("norm.bias"), world.rank() == 0);
  });
}

TEST(StateDict, APlainModelsStateIsLoadedIntoIgnoredParametersToo) {
  testing::run_both_ways(2, [&](comm::World& world) {
    const auto plain = kTask.build();
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : testing::unique_parameters(*plain)) parameter.add_(1);
    }
    StateDict state = testing::parameters_of(*plain);
    state["head.weight"] = state.at("table.weight");
    const auto model = kTask.build();
    const at::Tensor before = model->named_parameters()["norm.weight"];
    const void* memory = before.data_ptr();
    const auto sharded = fully_shard(model, world.mesh(), kIgnoring);
    sharded.load_state_dict(state);
    testing::expect_bitwise_equal(sharded.full_state_dict(), state);
    EXPECT_TRUE(model->named_parameters()["norm.weight"].is_same(before));
    EXPECT_EQ(before.data_ptr(), memory);
    EXPECT_TRUE(at::equal(before, state.at("norm.weight")));
    EXPECT_TRUE(before.requires_grad());
  });
}

TEST(StateDict, AnIgnoredParameterThatIsMissingOrOfAnotherShapeIsAnError) {
  comm::World world = comm::single_rank();
  const auto model = kTask.build();
  const auto sharded = fully_shard(model, world.mesh(), kIgnoring);
  StateDict state = sharded.full_state_dict();
  state["norm.weight"] = at::zeros({5}, at::kDouble);
  state.erase("norm.bias");
  try {
    sharded.load_state_dict(state);
    FAIL() << "loaded";
  } catch (const base::Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("norm.weight: given [5], the model has [6]"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("missing: norm.bias"));
  }
}

// What fully_shard refuses to shard can be left alone, whatever it is.
struct Odd : testing::Model {
  Odd() {
    register_module("linear", linear);
    linear->to(at::kDouble);
    phase = register_parameter("phase", at::ones({3}, at::kComplexDouble));
    table = register_parameter("table", at::eye(3).to_sparse(), /*requires_grad=*/false);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    return (linear(x) - y).pow(2).mean();
  }
  torch::nn::Linear linear{3, 3};
  at::Tensor phase, table;
};

TEST(StateDict, IgnoredParametersMayBeOfAnyKind) {
  testing::run_both_ways(2, [&](comm::World& world) {
    const auto model = std::make_shared<Odd>();
    const auto sharded = fully_shard(
        model, world.mesh(),
        {.rules = {{.pattern = "phase", .ignore = true}, {.pattern = "table", .ignore = true}}});
    StateDict state = sharded.full_state_dict();
    EXPECT_TRUE(at::equal(state.at("phase"), model->phase));
    EXPECT_TRUE(at::equal(state.at("table").to_dense(), model->table.to_dense()));
    state["phase"] = state["phase"] * 2;
    state["table"] = state["table"] * 2;
    sharded.load_state_dict(state);
    EXPECT_TRUE(at::equal(state.at("phase"), model->phase));
    EXPECT_TRUE(at::equal(state.at("table").to_dense(), model->table.to_dense()));
  });
}

}  // namespace
}  // namespace fullshard::shard
