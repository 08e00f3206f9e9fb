#include "fullshard/bench/step_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "bench/error_of.h"

namespace fullshard::bench {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string message(const StepShape& shape) {
  const base::Error error = error_of([&] { validate(shape); });
  EXPECT_EQ(error.code(), base::ErrorCode::kUsage);
  return error.what();
}

std::vector<std::string> names_of(std::string_view model) {
  std::vector<std::string> names;
  for (const ShapeSize& size : sizes_of(model)) names.emplace_back(size.name);
  return names;
}

TEST(StepShape, NamedShapesDifferAsTheirDescriptionsSay) {
  const StepShape a = named_shape("gpt", "a");
  const StepShape b = named_shape("gpt", "b");
  const StepShape c = named_shape("gpt", "c");
  EXPECT_EQ(a.layers * a.dim, b.layers * b.dim);
  EXPECT_EQ(a.seq * a.batch, 4 * b.seq * b.batch);
  EXPECT_EQ(c.vocab, 256);
  EXPECT_EQ(c.seq * c.batch, 1024);
  EXPECT_THAT(error_of([] { named_shape("gpt", "d"); }).what(),
              AllOf(HasSubstr("\"d\""), HasSubstr("a, b, c")));
}

TEST(StepShape, EveryNamedShapeCanBeMeasured) {
  for (const std::string& model : model_names()) {
    for (const std::string& name : shape_names(model)) {
      const StepShape shape = named_shape(model, name);
      EXPECT_EQ(shape.model, model);
      EXPECT_NO_THROW(validate(shape)) << model << " " << name;
    }
    EXPECT_NO_THROW(named_shape(model, usual_shape(model)));
  }
}

TEST(StepShape, EachModelHasItsOwnSizes) {
  EXPECT_THAT(names_of("gpt"), ElementsAre("layers", "dim", "heads", "vocab", "seq", "batch"));
  EXPECT_THAT(names_of("resnet"), ElementsAre("layers", "image", "classes", "batch"));
  EXPECT_THAT(names_of("vit"),
              ElementsAre("layers", "dim", "heads", "image", "patch", "classes", "batch"));
  EXPECT_THAT(error_of([] { sizes_of("cnn"); }).what(),
              AllOf(HasSubstr("--model: found \"cnn\""), HasSubstr("gpt, resnet, bert, vit")));
}

TEST(StepShape, SizesThatTheModelLacksAreOfNoAccount) {
  StepShape shape = named_shape("resnet", "18");
  shape.seq = shape.patch = 0;
  EXPECT_NO_THROW(validate(shape));
}

TEST(StepShape, UnusableSizesAreNamed) {
  StepShape vit = named_shape("vit", "small");
  vit.patch = 7;
  EXPECT_THAT(message(vit), HasSubstr("--patch: found 7; expected a divisor of --image 64"));
  vit = named_shape("vit", "small");
  vit.heads = 5;
  EXPECT_THAT(message(vit), HasSubstr("--heads: found 5; expected a divisor of --dim 384"));
  StepShape resnet = named_shape("resnet", "50");
  resnet.layers = 20;
  EXPECT_THAT(message(resnet), HasSubstr("18, 34 or 50"));
}

TEST(StepShape, SpeedCountsTokensOrImages) {
  EXPECT_STREQ(counted(named_shape("bert", "base")), "tokens");
  EXPECT_EQ(counted_per_row(named_shape("bert", "base")), 128);
  EXPECT_STREQ(counted(named_shape("vit", "base")), "images");
  EXPECT_EQ(counted_per_row(named_shape("resnet", "18")), 1);
}

}  // namespace
}  // namespace fullshard::bench
