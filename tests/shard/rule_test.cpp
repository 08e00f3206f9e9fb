#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "fullshard/base/error.h"
#include "support/training.h"

// Rules: what they say about a parameter's dtype, and which of them holds for a tied parameter.

namespace fullshard::shard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::TrainOptions;

// Computes in double whatever its first matrix is stored in.
struct Mixed : testing::Model {
  Mixed() : first(6, 10), second(10, 4) {
    register_module("first", first);
    register_module("second", second);
    to(at::kDouble);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    const at::Tensor weight = first->weight.to(at::kDouble);
    return (second(torch::tanh(at::linear(x, weight, first->bias))) - y).pow(2).mean();
  }
  torch::nn::Linear first, second;
};

testing::Problem mixed_problem(bool converted) {
  testing::Problem task = testing::mlp_problem({6, 4});
  task.build = [=] {
    const auto model = testing::build_seeded([] { return std::make_shared<Mixed>(); });
    at::Tensor& weight = static_cast<Mixed&>(*model).first->weight;
    if (converted) weight.set_data(weight.detach().to(at::kFloat));
    return model;
  };
  return task;
}

const FullyShardOptions kFloatMatrix{.rules = {{.pattern = "first.weight", .dtype = at::kFloat}}};

TEST(Rule, DtypeIsWhatTheParameterIsStoredIn) {
  const TrainOptions options{.steps = 4, .optimizer = testing::Optimizer::kSgd};
  const StateDict expected = testing::train_reference(mixed_problem(true), options);
  ASSERT_EQ(expected.at("first.weight").scalar_type(), at::kFloat);
  for (const int ranks : {1, 2, 3}) {
    comm::run_as_threads(ranks, [&](comm::World& world) {
      const auto trained =
          testing::train_sharded(mixed_problem(false), world, kFloatMatrix, options);
      EXPECT_EQ(trained.at("first.weight").scalar_type(), at::kFloat);
      EXPECT_EQ(trained.at("first.bias").scalar_type(), at::kDouble);
      testing::expect_match(trained, expected, 1e-5);
    });
  }
}

TEST(Rule, AParameterConvertedStartsFromTheRoundedValueOnEveryRank) {
  const StateDict expected = testing::parameters_of(*mixed_problem(true).build());
  comm::run_as_threads(3, [&](comm::World& world) {
    for (const bool sync : {true, false}) {
      FullyShardOptions sharding = kFloatMatrix;
      sharding.sync_module_states = sync;
      const auto model = mixed_problem(false).build();
      const auto sharded = fully_shard(model, world.mesh(), sharding);
      testing::expect_bitwise_equal(sharded.full_state_dict(), expected);
      EXPECT_EQ(model->named_parameters()["first.weight"].scalar_type(), at::kFloat);
    }
  });
}

TEST(Rule, DifferentDtypesAreDifferentUnitsInTheTable) {
  comm::World world = comm::single_rank();
  const auto sharded = fully_shard(mixed_problem(false).build(), world.mesh(), kFloatMatrix);
  const std::string table = sharded.describe();
  EXPECT_THAT(table, HasSubstr("[Float, FULL_SHARD]  FULL_SHARD  float32"));
  EXPECT_THAT(table, HasSubstr("[Double, FULL_SHARD]  FULL_SHARD  float64"));
}

std::string refusal(const std::shared_ptr<testing::Model>& model, at::ScalarType dtype) {
  comm::World world = comm::single_rank();
  try {
    fully_shard(model, world.mesh(), {.rules = {{.pattern = "first.*", .dtype = dtype}}});
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(Rule, OnlyFloatingPointIsConverted) {
  const auto model = mixed_problem(false).build();
  EXPECT_THAT(refusal(model, at::kLong),
              ::testing::AllOf(HasSubstr("'first.*'"), HasSubstr("'first.weight'"),
                               HasSubstr("from Double to Long")));
  auto& weight = static_cast<Mixed&>(*model).first->weight;
  weight.set_requires_grad(false);
  weight.set_data(weight.detach().to(at::kInt));
  EXPECT_THAT(refusal(model, at::kFloat), HasSubstr("from Int to Float"));
}

std::string tied_table(const std::vector<ParameterRule>& rules) {
  comm::World world = comm::single_rank();
  const auto task = testing::gpt_problem(17, 6, 1, /*tied=*/true);
  return fully_shard(task.build(), world.mesh(), {.rules = rules}).describe();
}

TEST(Rule, MatchesATiedParameterByAnyOfItsNames) {
  const std::string by_second =
      tied_table({{.pattern = "head.weight", .strategy = ShardingStrategy::NO_SHARD}});
  EXPECT_THAT(by_second, HasSubstr("table.weight = head.weight  [17, 6]  all ranks"));
  EXPECT_THAT(tied_table({{.pattern = "head.*", .ignore = true}}), Not(HasSubstr("table.weight")));
}

TEST(Rule, OfSeveralThatMatchATiedParameterTheFirstCounts) {
  const ParameterRule second = {.pattern = "head.*", .strategy = ShardingStrategy::NO_SHARD};
  const ParameterRule first = {.pattern = "table.*", .strategy = ShardingStrategy::SHARD_GRAD_OP};
  const std::string whole = "table.weight = head.weight  [17, 6]  all ranks";
  EXPECT_THAT(tied_table({second, first}), HasSubstr(whole));
  EXPECT_THAT(tied_table({first, second}), Not(HasSubstr(whole)));
}

}  // namespace
}  // namespace fullshard::shard
