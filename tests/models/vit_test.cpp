#include "fullshard/models/vit.h"

#include <gmock/gmock.h>

#include "models/original.h"

namespace fullshard::models {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

constexpr VitOptions kSmall{.image_size = 12,
                            .patch_size = 4,
                            .dim = 12,
                            .n_layers = 2,
                            .n_heads = 3,
                            .mlp_dim = 20,
                            .n_classes = 5};

VitOptions without_class_token() {
  VitOptions options = kSmall;
  options.class_token = false;
  return options;
}

Vit filled(const VitOptions& options) {
  Vit model(options);
  testing::fill_by_name(*model);
  return model;
}

const at::Tensor kClasses = torch::tensor({1, 4}, torch::kLong);

// torchvision 0.26.0, VisionTransformer.
TEST(Vit, EqualsTheOriginal) {
  Vit model = filled(kSmall);
  const at::Tensor logits = model->forward(testing::images(2, 12));
  testing::expect_original(*model, logits, model->loss(testing::images(2, 12), kClasses),
                           {32, 1.49580841029705, 1.0001385720664, 1.77784977247278});
}

TEST(Vit, ParameterCountHasAClosedForm) {
  EXPECT_EQ(parameter_count(VitOptions{}), 86'567'656);
  for (const VitOptions& options : {kSmall, without_class_token()}) {
    EXPECT_EQ(testing::count(*Vit(options)), parameter_count(options));
  }
}

TEST(Vit, WithoutAClassTokenTheMeanOfThePatchesIsClassified) {
  Vit model = filled(without_class_token());
  {
    const torch::NoGradGuard no_grad;
    model->pos_embedding.zero_();
  }
  // Without positions, the order of the patches tells nothing.
  const at::Tensor images = testing::images(2, 12);
  EXPECT_TRUE(torch::allclose(model->forward(images), model->forward(images.roll(4, 3)), 1e-12));
  EXPECT_FALSE(torch::allclose(model->forward(images), model->forward(images.roll(1, 3))));
}

TEST(Vit, InitialValuesFollowTheOriginal) {
  torch::manual_seed(5);
  const Vit model(VitOptions{.image_size = 32, .dim = 96, .n_layers = 1, .mlp_dim = 200});
  const auto parameters = model->named_parameters();
  testing::expect_normal(parameters["conv_proj.weight"], std::sqrt(1.0 / (3 * 16 * 16)));
  const at::Tensor& qkv =
      parameters["encoder.layers.encoder_layer_0.self_attention.in_proj_weight"];
  EXPECT_NEAR(qkv.abs().max().item<double>(), std::sqrt(6.0 / (4 * 96)), 1e-3);
  const at::Tensor& up = parameters["encoder.layers.encoder_layer_0.mlp.0.weight"];
  EXPECT_NEAR(up.abs().max().item<double>(), std::sqrt(6.0 / (96 + 200)), 1e-3);
  for (const char* name : {"class_token", "heads.head.weight", "heads.head.bias",
                           "encoder.layers.encoder_layer_0.self_attention.out_proj.bias"}) {
    EXPECT_EQ(parameters[name].abs().max().item<double>(), 0) << name;
  }
}

TEST(Vit, NamesWhatCannotBeUsed) {
  VitOptions options = kSmall;
  options.patch_size = 5;
  EXPECT_THAT(error_of([&] { Vit model(options); }),
              HasSubstr("ViT options: patch_size 5 must divide image_size 12"));
  options = kSmall;
  options.n_heads = 5;
  EXPECT_THAT(error_of([&] { Vit model(options); }), HasSubstr("n_heads 5 must divide dim 12"));
  Vit model = filled(kSmall);
  EXPECT_THAT(error_of([&] { model->forward(testing::images(2, 16)); }),
              HasSubstr("[batch, 3, 12, 12], not [2, 3, 16, 16]"));
}

}  // namespace
}  // namespace fullshard::models
