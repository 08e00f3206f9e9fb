#include "fullshard/models/resnet.h"

#include <gmock/gmock.h>

#include "models/original.h"

namespace fullshard::models {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

Resnet filled(const ResnetOptions& options) {
  Resnet model(options);
  testing::fill_by_name(*model);
  return model;
}

const at::Tensor kClasses = torch::tensor({1, 4, 2}, torch::kLong);

double second_logit_in_evaluation(Resnet& model) {
  model->eval();
  return model->forward(testing::images(3, 48)).flatten()[1].item<double>();
}

// torchvision 0.26.0: ResNet(BasicBlock, [1, 2, 1, 1], num_classes=5). The running statistics that
// evaluation uses are those after one batch.
TEST(Resnet, EqualsTheOriginalWithPlainBlocks) {
  Resnet model = filled({.blocks = {1, 2, 1, 1}, .n_classes = 5});
  Resnet other = filled({.blocks = {1, 2, 1, 1}, .n_classes = 5});
  const at::Tensor logits = other->forward(testing::images(3, 48));
  testing::expect_original(*model, logits, model->loss(testing::images(3, 48), kClasses),
                           {44, -8.1092701368154, 18.2527227019132, 146292.430463844});
  EXPECT_NEAR(second_logit_in_evaluation(model) / -211.920245918691, 1, 1e-9);
}

// ResNet(Bottleneck, [1, 1, 2, 1], num_classes=5).
TEST(Resnet, EqualsTheOriginalWithBottlenecks) {
  const ResnetOptions options{.blocks = {1, 1, 2, 1}, .bottleneck = true, .n_classes = 5};
  Resnet model = filled(options);
  const at::Tensor logits = filled(options)->forward(testing::images(3, 48));
  testing::expect_original(*model, logits, model->loss(testing::images(3, 48), kClasses),
                           {62, 86.2071622133005, 34.5926767597556, 4921425.28124835});
  EXPECT_NEAR(second_logit_in_evaluation(model) / 146851.397554199, 1, 1e-9);
}

TEST(Resnet, ParameterCountHasAClosedForm) {
  EXPECT_EQ(parameter_count(resnet_of_depth(18)), 11'689'512);
  EXPECT_EQ(parameter_count(resnet_of_depth(34)), 21'797'672);
  EXPECT_EQ(parameter_count(resnet_of_depth(50)), 25'557'032);
  for (const bool bottleneck : {false, true}) {
    for (const bool small_images : {false, true}) {
      const ResnetOptions options{.blocks = {2, 1, 2},
                                  .bottleneck = bottleneck,
                                  .width = 6,
                                  .in_channels = 2,
                                  .n_classes = 7,
                                  .small_images = small_images};
      EXPECT_EQ(testing::count(*Resnet(options)), parameter_count(options));
    }
  }
}

TEST(Resnet, TheStemForSmallImagesKeepsTheirSize) {
  Resnet model(ResnetOptions{.blocks = {1}, .width = 4, .n_classes = 3, .small_images = true});
  const at::Tensor images = testing::images(2, 5).to(torch::kFloat);
  const at::Tensor stem = at::relu(model->conv1->forward(images));
  EXPECT_EQ(stem.sizes(), (std::vector<std::int64_t>{2, 4, 5, 5}));
  EXPECT_EQ(model->forward(images).sizes(), (std::vector<std::int64_t>{2, 3}));
}

TEST(Resnet, TheNormCanBeReplaced) {
  Resnet model(ResnetOptions{.blocks = {1, 1}, .width = 4}, [](std::int64_t channels) {
    return torch::nn::AnyModule(torch::nn::GroupNorm(2, channels));
  });
  EXPECT_EQ(model->buffers().size(), 0u) << "a BatchNorm is left";
  EXPECT_EQ(model->forward(testing::images(2, 32).to(torch::kFloat)).size(1), 1000);
}

TEST(Resnet, InitialValuesFollowTheOriginal) {
  torch::manual_seed(5);
  const Resnet model(ResnetOptions{.blocks = {1, 1}, .width = 32});
  for (const auto& item : model->named_parameters()) {
    const at::Tensor& value = item.value();
    SCOPED_TRACE(item.key());
    if (value.dim() == 4) {
      const auto fan_out = static_cast<double>(value.numel() / value.size(1));
      testing::expect_normal(value, std::sqrt(2 / fan_out));
    } else if (value.dim() == 1 && !item.key().starts_with("fc")) {
      EXPECT_TRUE(value.eq(item.key().ends_with("weight") ? 1 : 0).all().item<bool>());
    }
  }
}

TEST(Resnet, NamesWhatCannotBeUsed) {
  EXPECT_THAT(error_of([] { resnet_of_depth(19); }), HasSubstr("18, 34 and 50"));
  EXPECT_THAT(error_of([] { validate(ResnetOptions{.blocks = {}}); }), HasSubstr("1 to 8 stages"));
  EXPECT_THAT(error_of([] {
                validate(ResnetOptions{.blocks = {2, 0}});
              }),
              HasSubstr("ResNet options: blocks must be at least 1, not 0"));
  EXPECT_THAT(error_of([] { Resnet model(ResnetOptions{.width = 0}); }), HasSubstr("width"));
  Resnet model(ResnetOptions{.blocks = {1}, .width = 4});
  EXPECT_THAT(error_of([&] {
                model->forward(torch::zeros({1, 4, 8, 8}));
              }),
              HasSubstr("images [batch, 3, height, width], not [1, 4, 8, 8]"));
}

}  // namespace
}  // namespace fullshard::models
