#include "fullshard/models/bert.h"

#include <gmock/gmock.h>

#include "models/original.h"

namespace fullshard::models {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

constexpr BertOptions kSmall{
    .vocab_size = 11, .seq_len = 9, .dim = 12, .n_layers = 2, .n_heads = 3, .mlp_dim = 20};

Bert filled() {
  Bert model(kSmall);
  testing::fill_by_name(*model);
  return model;
}

at::Tensor longs(std::vector<std::int64_t> values) {
  const auto columns = static_cast<std::int64_t>(values.size()) / 2;
  return torch::tensor(values, torch::kLong).view({2, columns});
}

const at::Tensor kTokens = longs({1, 5, 3, 7, 2, 4, 10, 0, 0, 0});
const at::Tensor kTypes = longs({0, 0, 1, 1, 1, 0, 1, 0, 0, 0});
const at::Tensor kMask = longs({1, 1, 1, 1, 1, 1, 1, 0, 0, 0}).to(torch::kBool);
const at::Tensor kTargets = longs({-100, 6, -100, 2, -100, 3, -100, -100, -100, -100});

// transformers 4.50.0, BertForMaskedLM without dropout.
TEST(Bert, EqualsTheOriginal) {
  Bert model = filled();
  const at::Tensor logits = model->forward(kTokens, kTypes, kMask);
  testing::expect_original(*model, logits, model->loss(kTokens, kTargets, kTypes, kMask),
                           {42, 1.25774231996696, 3.49756251478559, 4.06590634619529});
}

TEST(Bert, ParameterCountHasAClosedForm) {
  EXPECT_EQ(parameter_count(BertOptions{}), 109'514'298);
  EXPECT_EQ(testing::count(*Bert(kSmall)), parameter_count(kSmall));
}

TEST(Bert, WithoutTypesAndMaskAllTokensAreOfTypeZeroAndSeen) {
  Bert model = filled();
  const at::Tensor all = torch::ones_like(kMask);
  EXPECT_TRUE(torch::allclose(model->forward(kTokens),
                              model->forward(kTokens, torch::zeros_like(kTypes), all), 1e-12));
}

TEST(Bert, PaddingIsNotSeen) {
  Bert model = filled();
  at::Tensor other = kTokens.clone();
  other[1][3] = 8;
  const at::Tensor before = model->forward(kTokens, kTypes, kMask);
  const at::Tensor after = model->forward(other, kTypes, kMask);
  EXPECT_TRUE(torch::allclose(before[1].narrow(0, 0, 2), after[1].narrow(0, 0, 2), 1e-12));
  EXPECT_FALSE(torch::allclose(model->forward(kTokens)[1][0], model->forward(other)[1][0]));
}

TEST(Bert, TheHeadIsTheTokenTable) {
  Bert model = filled();
  model->loss(kTokens, kTargets).backward();
  EXPECT_GT(model->word_embeddings->weight.grad().abs().sum(1).min().item<double>(), 0);
}

TEST(Bert, InitialValuesFollowTheOriginal) {
  torch::manual_seed(5);
  const Bert model(BertOptions{.vocab_size = 300, .dim = 96, .n_layers = 1, .mlp_dim = 200});
  for (const auto& item : model->named_parameters()) {
    const std::string& name = item.key();
    SCOPED_TRACE(name);
    if (name.ends_with("bias")) {
      EXPECT_EQ(item.value().abs().max().item<double>(), 0);
    } else if (name.ends_with("LayerNorm.weight")) {
      EXPECT_TRUE(item.value().eq(1).all().item<bool>());
    } else if (item.value().numel() > 5000) {
      testing::expect_normal(item.value(), 0.02);
    }
  }
}

TEST(Bert, NamesWhatCannotBeUsed) {
  BertOptions options = kSmall;
  options.n_heads = 5;
  EXPECT_THAT(error_of([&] { Bert model(options); }),
              HasSubstr("BERT options: n_heads 5 must divide dim 12"));
  options = kSmall;
  options.n_token_types = 0;
  EXPECT_THAT(error_of([&] { Bert model(options); }), HasSubstr("n_token_types must be at least"));
  Bert model = filled();
  EXPECT_THAT(error_of([&] {
                model->forward(torch::zeros({1, 10}, torch::kLong));
              }),
              HasSubstr("10 tokens is longer than the model's seq_len 9"));
  EXPECT_THAT(error_of([&] { model->forward(torch::zeros({3}, torch::kLong)); }),
              HasSubstr("[batch, seq]"));
}

}  // namespace
}  // namespace fullshard::models
