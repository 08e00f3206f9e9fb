#include "fullshard/planner/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/support.h"

namespace fullshard::planner {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

TEST(Model, KnownShapesHaveTheirParameters) {
  EXPECT_EQ(parameter_count(named_model("bench-a")), 123'886'080);
  EXPECT_EQ(parameter_count(named_model("bench-c")), 10'844'160);
  EXPECT_EQ(parameter_count(named_model("vit-b16")), 86'567'656);
  EXPECT_EQ(parameter_count(named_model("vit-l16")), 304'326'632);
  ModelShape gpt2 = named_model("gpt2-124m");
  gpt2.vocab = 50257;  // not rounded up
  EXPECT_EQ(parameter_count(gpt2), 124'439'808);
}

TEST(Model, OperationsAreSixNAndTwelveLds) {
  const ModelShape shape = named_model("bench-c");
  const double multiplied = 10'844'160 - 256 * 384;
  EXPECT_DOUBLE_EQ(flops_per_token(shape), 6 * multiplied + 12.0 * 6 * 384 * 256);
}

TEST(Model, AnUntiedTableIsLookedUpOnly) {
  ModelShape shape = named_model("bench-c");
  const double tied = flops_per_token(shape);
  const std::int64_t parameters = parameter_count(shape);
  EXPECT_EQ(tied_elements(shape), 256 * 384);
  shape.tie_embeddings = false;
  EXPECT_DOUBLE_EQ(flops_per_token(shape), tied);
  EXPECT_EQ(parameter_count(shape), parameters + 256 * 384);
  EXPECT_EQ(tied_elements(shape), 0);
}

TEST(Model, ActivationsAreThoseOfTheMemoryFormula) {
  const ModelShape shape = named_model("bench-a");
  const ActivationElements elements = activation_elements(shape);
  EXPECT_DOUBLE_EQ(elements.block, 16.5 * 768);
  EXPECT_DOUBLE_EQ(elements.last, 4.0 * 50304);
}

TEST(Model, StagesAreBlocksByHalves) {
  const std::vector<Stage> stages = stages_of(testing::small_model());
  ASSERT_EQ(stages.size(), 1 + 2 * 2 + 1U);
  EXPECT_TRUE(stages.front().looks_up);
  EXPECT_EQ(stages[1].block_module, "blocks.0");
  EXPECT_THAT(stages[4].modules, ::testing::ElementsAre("blocks.1.mlp_norm", "blocks.1.mlp"));
  EXPECT_EQ(stages.back().block, -1);
}

TEST(Model, BadShapesNameTheFlag) {
  const auto refused = [](auto change) {
    ModelShape shape = testing::small_model();
    change(shape);
    return error_of([&] { validate(shape); });
  };
  EXPECT_THAT(refused([](ModelShape& shape) { shape.layers = 0; }), HasSubstr("--layers: found 0"));
  EXPECT_THAT(refused([](ModelShape& shape) { shape.vocab = -1; }), HasSubstr("--vocab: found -1"));
  EXPECT_THAT(refused([](ModelShape& shape) { shape.heads = 3; }),
              HasSubstr("--heads: found 3; expected a divisor of --dim 16"));
  EXPECT_THAT(error_of([] { named_model("gpt5"); }), HasSubstr("--model: found \"gpt5\""));
}

}  // namespace
}  // namespace fullshard::planner
