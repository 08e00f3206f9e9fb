#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "fullshard/base/error.h"
#include "support/equality.h"

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

std::string refusal(const std::shared_ptr<testing::Model>& model, const ParameterRule& rule) {
  comm::World world = comm::single_rank();
  try {
    fully_shard(model, world.mesh(), {.rules = {rule}});
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(Rule, OnlyFloatingPointIsConverted) {
  const auto model = mixed_problem(false).build();
  EXPECT_THAT(refusal(model, {.pattern = "first.*", .dtype = at::kLong}),
              ::testing::AllOf(HasSubstr("'first.*'"), HasSubstr("'first.weight'"),
                               HasSubstr("from Double to Long")));
  auto& weight = static_cast<Mixed&>(*model).first->weight;
  weight.set_requires_grad(false);
  weight.set_data(weight.detach().to(at::kInt));
  EXPECT_THAT(refusal(model, {.pattern = "first.*", .dtype = at::kFloat}),
              HasSubstr("from Int to Float"));
}

TEST(Rule, ByDtypeChoosesTheStrategy) {
  comm::World world = comm::single_rank();
  const auto table = [&](const ParameterRule& rule) {
    return fully_shard(mixed_problem(true).build(), world.mesh(), {.rules = {rule}}).describe();
  };
  const auto whole = ShardingStrategy::NO_SHARD;
  const std::string floats = table({.of_dtype = at::kFloat, .strategy = whole});
  EXPECT_THAT(floats, HasSubstr("first.weight  [10, 6]  all ranks"));
  EXPECT_THAT(floats, Not(HasSubstr("second.weight  [4, 10]  all ranks")));
  const std::string doubles =
      table({.pattern = "*.weight", .of_dtype = at::kDouble, .strategy = whole});
  EXPECT_THAT(doubles, Not(HasSubstr("first.weight  [10, 6]  all ranks")));
  EXPECT_THAT(doubles, HasSubstr("second.weight  [4, 10]  all ranks"));
  EXPECT_THAT(doubles, Not(HasSubstr("second.bias  [4]  all ranks")));
}

TEST(Rule, OfADtypeThatIsNotThereSaysWhichAre) {
  const auto model = mixed_problem(true).build();
  EXPECT_THAT(refusal(model, {.of_dtype = at::kBFloat16}),
              HasSubstr("the rule for BFloat16 matches no parameter; what it is about is of Double "
                        "and Float"));
  EXPECT_THAT(refusal(model, {.pattern = "second.*", .of_dtype = at::kFloat}),
              HasSubstr("the rule for Float 'second.*' matches no parameter; what it is about is "
                        "of Double"));
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
  EXPECT_THAT(tied_table({{.pattern = "head.*", .ignore = true}}),
              HasSubstr("ignored, every rank has its own\n  table.weight = head.weight  [17, 6]"));
}

TEST(Rule, OfSeveralThatMatchATiedParameterTheFirstCounts) {
  const ParameterRule second = {.pattern = "head.*", .strategy = ShardingStrategy::NO_SHARD};
  const ParameterRule first = {.pattern = "table.*", .strategy = ShardingStrategy::SHARD_GRAD_OP};
  const std::string whole = "table.weight = head.weight  [17, 6]  all ranks";
  EXPECT_THAT(tied_table({second, first}), HasSubstr(whole));
  EXPECT_THAT(tied_table({first, second}), Not(HasSubstr(whole)));
}

std::string gpt_table(const std::vector<ParameterRule>& rules) {
  comm::World world = comm::single_rank();
  return fully_shard(testing::gpt_problem(17, 6, 2).build(), world.mesh(), {.rules = rules})
      .describe();
}

TEST(Rule, MatchesByTheClassOfAModuleThatHoldsTheParameter) {
  const auto all = ShardingStrategy::NO_SHARD;
  const std::string by_type = gpt_table({rule_for<torch::nn::LayerNormImpl>({.strategy = all})});
  EXPECT_THAT(by_type, HasSubstr("blocks.0.norm.weight  [6]  all ranks"));
  EXPECT_THAT(by_type, HasSubstr("\n  norm.bias  [6]  all ranks"));
  EXPECT_THAT(by_type, Not(HasSubstr("up.weight  [12, 6]  all ranks")));
  for (const std::string name :
       {"LayerNormImpl", "nn::LayerNormImpl", "torch::nn::LayerNormImpl"}) {
    EXPECT_EQ(gpt_table({{.module_class = name, .strategy = all}}), by_type);
  }
}

TEST(Rule, PatternAndClassHoldTogether) {
  const std::string table = gpt_table({rule_for<torch::nn::LinearImpl>(
      {.pattern = "blocks.1.*", .strategy = ShardingStrategy::NO_SHARD})});
  EXPECT_THAT(table, HasSubstr("blocks.1.up.weight  [12, 6]  all ranks"));
  EXPECT_THAT(table, Not(HasSubstr("blocks.0.up.weight  [12, 6]  all ranks")));
  EXPECT_THAT(table, Not(HasSubstr("blocks.1.norm.weight  [6]  all ranks")));
}

TEST(Rule, AClassHoldsForAllThatIsInsideItsModules) {
  const std::string table =
      gpt_table({{.module_class = "Block", .strategy = ShardingStrategy::NO_SHARD}});
  EXPECT_THAT(table, HasSubstr("blocks.0.up.weight  [12, 6]  all ranks"));
  EXPECT_THAT(table, HasSubstr("blocks.1.norm.weight  [6]  all ranks"));
  EXPECT_THAT(table, HasSubstr("\n  norm.weight  [6]  0:[0,6)"));
  EXPECT_THAT(gpt_table({{.module_class = "Gpt", .strategy = ShardingStrategy::NO_SHARD}}),
              Not(HasSubstr("0:[")));
}

TEST(Rule, OfModulesInsideEachOtherTheFirstRuleCounts) {
  const ParameterRule inner = rule_for<torch::nn::LayerNormImpl>({.ignore = true});
  const ParameterRule outer = {.module_class = "Block", .strategy = ShardingStrategy::NO_SHARD};
  const std::string in_block = "  blocks.0.norm.weight  [6]  all ranks";
  EXPECT_THAT(gpt_table({outer, inner}), HasSubstr(in_block));
  EXPECT_THAT(gpt_table({inner, outer}), Not(HasSubstr(in_block)));
}

struct Norm : torch::nn::LayerNormImpl {
  explicit Norm(std::int64_t size) : LayerNormImpl(torch::nn::LayerNormOptions({size})) {}
};

// Two kinds of layer with one base, of which one holds its parameters in modules of a module.
struct Layer : torch::nn::Module {
  torch::nn::Sequential parts = register_module(
      "parts", torch::nn::Sequential(torch::nn::Linear(4, 4), std::make_shared<Norm>(4)));
};
struct GatedLayer : Layer {
  torch::nn::Linear gate = register_module("gate", torch::nn::Linear(4, 4));
};
struct Layers : testing::Model {
  Layers() {
    register_module("plain", std::make_shared<Layer>());
    register_module("gated", std::make_shared<GatedLayer>());
    register_module("last", torch::nn::Linear(4, 4));
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor&) override { return x.mean(); }
};

std::string layers_table(const ParameterRule& rule) {
  comm::World world = comm::single_rank();
  return fully_shard(std::make_shared<Layers>(), world.mesh(), {.rules = {rule}}).describe();
}

TEST(Rule, AClassStandsForThoseDerivedFromItToo) {
  const auto all = ShardingStrategy::NO_SHARD;
  const std::string layers = layers_table(rule_for<Layer>({.strategy = all}));
  EXPECT_THAT(layers, HasSubstr("plain.parts.0.weight  [4, 4]  all ranks"));
  EXPECT_THAT(layers, HasSubstr("gated.parts.1.weight  [4]  all ranks"));
  EXPECT_THAT(layers, HasSubstr("gated.gate.weight  [4, 4]  all ranks"));
  EXPECT_THAT(layers, HasSubstr("last.weight  [4, 4]  0:[0,16)"));
  const std::string gated = layers_table(rule_for<GatedLayer>({.strategy = all}));
  EXPECT_THAT(gated, HasSubstr("gated.parts.1.weight  [4]  all ranks"));
  EXPECT_THAT(gated, HasSubstr("plain.parts.0.weight  [4, 4]  0:[0,16)"));
  const std::string norms = layers_table(rule_for<torch::nn::LayerNormImpl>({.strategy = all}));
  EXPECT_THAT(norms, HasSubstr("plain.parts.1.weight  [4]  all ranks"));
  EXPECT_THAT(norms, HasSubstr("plain.parts.0.weight  [4, 4]  0:[0,16)"));
}

TEST(Rule, ByItsNameAClassIsOnlyItself) {
  const std::string table =
      layers_table({.module_class = "Layer", .strategy = ShardingStrategy::NO_SHARD});
  EXPECT_THAT(table, HasSubstr("plain.parts.0.weight  [4, 4]  all ranks"));
  EXPECT_THAT(table, HasSubstr("gated.gate.weight  [4, 4]  0:[0,16)"));
}

TEST(Rule, AClassThatMatchesNothingNamesThoseThereAre) {
  const auto model = testing::gpt_problem(17, 6, 2).build();
  EXPECT_THAT(refusal(model, {.module_class = "LayerNormImp"}),
              ::testing::AllOf(HasSubstr("class 'LayerNormImp' matches no parameter"),
                               HasSubstr("torch::nn::LayerNormImpl"),
                               HasSubstr("torch::nn::EmbeddingImpl")));
  EXPECT_THAT(refusal(model, {.module_class = "NormImpl"}), HasSubstr("matches no parameter"));
  EXPECT_THAT(refusal(model, rule_for<torch::nn::LayerNormImpl>({.pattern = "blocks.0.norms.*"})),
              HasSubstr("the nearest name is 'blocks.0.norm."));
}

// Matrices in bfloat16 and normalisations in float32, as mixed precision has them.
struct HalfBlock : testing::Model {
  HalfBlock() : norm(torch::nn::LayerNormOptions({8})), up(8, 24), down(24, 8) {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    const at::Tensor h = norm(x).to(up->weight.scalar_type());
    return (x + down(torch::gelu(up(h))).to(at::kFloat) - y).pow(2).mean();
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};

testing::Problem half_problem(bool converted) {
  testing::Problem task = testing::mlp_problem({8, 8}, at::kFloat);
  task.build = [=] {
    const auto model = testing::build_seeded([] { return std::make_shared<HalfBlock>(); });
    if (converted) {
      static_cast<HalfBlock&>(*model).up->to(at::kBFloat16);
      static_cast<HalfBlock&>(*model).down->to(at::kBFloat16);
    }
    return model;
  };
  return task;
}

const FullyShardOptions kHalfMatrices{
    .auto_wrap_policy = root_only(),
    .rules = {rule_for<torch::nn::LinearImpl>({.dtype = at::kBFloat16})}};

TEST(Rule, HalfMatricesAndFloatNormsInOneUnit) {
  for (const int ranks : {1, 2, 3}) {
    // The reference passes the rows of each rank one after another. Halves are exact, so with two
    // ranks both round the same sum; thirds are not.
    const auto passes = [=](testing::Model& model, const testing::Batch& batch,
                            const testing::Turn& turn) {
      const int parts = turn.size == 1 ? ranks : 1;
      for (int part = 0; part < parts; ++part) {
        const auto rows = testing::rows_of_rank(batch, part, parts);
        (model.loss(rows.x, rows.y) / parts).backward();
      }
    };
    // Adam turns a rounding error of a small gradient into a step of full size.
    const TrainOptions options{
        .steps = 4,
        .optimizer = ranks == 3 ? testing::Optimizer::kSgd : testing::Optimizer::kAdamW};
    const StateDict expected = testing::train_passes(half_problem(true), passes, options);
    comm::run_as_threads(ranks, [&](comm::World& world) {
      const auto model = half_problem(false).build();
      const auto sharded = fully_shard(model, world.mesh(), kHalfMatrices);
      ASSERT_EQ(sharded.counters().units.size(), 2U);
      testing::train_steps(*model, sharded, world, half_problem(false), options);
      const StateDict trained = sharded.full_state_dict();
      EXPECT_EQ(trained.at("up.weight").scalar_type(), at::kBFloat16);
      EXPECT_EQ(trained.at("norm.weight").scalar_type(), at::kFloat);
      testing::expect_match(trained, expected, ranks == 3 ? 1e-2 : 1e-6);
    });
  }
}

}  // namespace
}  // namespace fullshard::shard
