#include "fullshard/models/gpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "fullshard/base/error.h"

namespace fullshard::models {
namespace {

using testing::HasSubstr;

GptOptions small(bool tied = true) {
  return {.vocab_size = 11,
          .seq_len = 7,
          .dim = 8,
          .n_layers = 2,
          .n_heads = 2,
          .tie_embeddings = tied};
}

Gpt make(const GptOptions& options, torch::Dtype dtype = torch::kDouble) {
  torch::manual_seed(5);
  Gpt model(options);
  model->to(dtype);
  return model;
}

at::Tensor tokens_for(const GptOptions& options, std::int64_t batch, std::int64_t seq) {
  torch::manual_seed(9);
  return torch::randint(options.vocab_size, {batch, seq}, torch::kLong);
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

double max_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

/// One head by hand: scores, mask, softmax and sum written out as plain matrix products.
at::Tensor attention_by_hand(AttentionImpl& attention, const at::Tensor& x, std::int64_t n_heads) {
  const std::int64_t seq = x.size(1);
  const std::int64_t dim = x.size(2);
  const std::int64_t width = dim / n_heads;
  const auto future = torch::ones({seq, seq}, torch::kBool).triu(1);
  std::vector<at::Tensor> rows;
  for (std::int64_t b = 0; b < x.size(0); ++b) {
    const auto projected = x[b].matmul(attention.qkv->weight.t()) + attention.qkv->bias;
    std::vector<at::Tensor> heads;
    for (std::int64_t h = 0; h < n_heads; ++h) {
      const auto q = projected.narrow(1, h * width, width);
      const auto k = projected.narrow(1, dim + h * width, width);
      const auto v = projected.narrow(1, 2 * dim + h * width, width);
      const auto scores = q.matmul(k.t()) / std::sqrt(static_cast<double>(width));
      heads.push_back(scores.masked_fill(future, -1e300).softmax(-1).matmul(v));
    }
    rows.push_back(torch::cat(heads, 1).matmul(attention.projection->weight.t()) +
                   attention.projection->bias);
  }
  return torch::stack(rows);
}

TEST(Gpt, LogitsHaveOneRowATokenAndOneColumnAnId) {
  for (const bool tied : {true, false}) {
    for (const auto dtype : {torch::kFloat, torch::kDouble}) {
      auto model = make(small(tied), dtype);
      const auto logits = model->forward(tokens_for(small(), 3, 5));
      EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{3, 5, 11}));
      EXPECT_EQ(logits.scalar_type(), dtype);
    }
  }
}

TEST(Gpt, FutureTokensDoNotChangeThePast) {
  auto model = make(small());
  const auto tokens = tokens_for(small(), 1, 7);
  const auto before = model->forward(tokens);
  for (std::int64_t changed = 1; changed < 7; ++changed) {
    auto other = tokens.clone();
    other[0][changed] = (other[0][changed] + 1) % 11;
    const auto after = model->forward(other);
    EXPECT_LT(max_difference(before.narrow(1, 0, changed), after.narrow(1, 0, changed)), 1e-14);
    EXPECT_GT(max_difference(before[0][changed], after[0][changed]), 1e-6);
  }
}

TEST(Gpt, AttentionEqualsPlainMatrixProducts) {
  GptOptions options = small();
  torch::manual_seed(3);
  Attention attention(options);
  attention->to(torch::kDouble);
  const auto x = torch::randn({2, 6, 8}, torch::kDouble);
  EXPECT_LT(max_difference(attention->forward(x), attention_by_hand(*attention, x, 2)), 1e-13);
}

TEST(Gpt, MlpUsesTheTanhFormOfGelu) {
  torch::manual_seed(3);
  Mlp mlp(small());
  mlp->to(torch::kDouble);
  const auto x = torch::randn({4, 8}, torch::kDouble);
  const auto u = x.matmul(mlp->up->weight.t()) + mlp->up->bias;
  const auto gelu = 0.5 * u * (1 + torch::tanh(std::sqrt(2 / M_PI) * (u + 0.044715 * u.pow(3))));
  const auto expected = gelu.matmul(mlp->projection->weight.t()) + mlp->projection->bias;
  EXPECT_LT(max_difference(mlp->forward(x), expected), 1e-14);
}

TEST(Gpt, LossIsTheMeanOfNatsAToken) {
  auto model = make(small());
  const auto tokens = tokens_for(small(), 2, 4);
  const auto targets = (tokens + 3) % 11;
  const auto probabilities = model->forward(tokens).softmax(-1);
  const auto chosen = probabilities.gather(2, targets.unsqueeze(2)).log();
  EXPECT_NEAR(model->loss(tokens, targets).item<double>(), -chosen.mean().item<double>(), 1e-13);
}

TEST(Gpt, IgnoredTargetsCountForNothing) {
  auto model = make(small());
  const auto tokens = tokens_for(small(), 2, 4);
  auto targets = (tokens + 3) % 11;
  const at::NoGradGuard no_grad;
  const auto chosen = model->forward(tokens).log_softmax(-1).gather(2, targets.unsqueeze(2));
  for (const auto& [row, column] : {std::pair{0, 1}, {0, 2}, {1, 3}}) {
    targets[row][column] = -100;
    chosen[row][column] = 0;
  }
  const double sum = -chosen.sum().item<double>();
  EXPECT_NEAR(model->loss_sum(tokens, targets).item<double>(), sum, 1e-13);
  EXPECT_NEAR(model->loss(tokens, targets).item<double>(), sum / 5, 1e-13);
  EXPECT_EQ(model->loss_sum(tokens, targets.fill_(-100)).item<double>(), 0);
}

TEST(Gpt, UntrainedLossIsNearTheUniformOne) {
  const GptOptions options{.vocab_size = 256, .seq_len = 16, .dim = 64, .n_layers = 2};
  auto model = make(options);
  const auto tokens = tokens_for(options, 8, 16);
  EXPECT_NEAR(model->loss(tokens, tokens.flip(1)).item<double>(), std::log(256.0), 0.1);
}

TEST(Gpt, TiedHeadIsTheTokenTableItself) {
  auto tied = make(small());
  const auto parameters = tied->named_parameters();
  EXPECT_EQ(parameters.find("head.weight"), nullptr);
  tied->loss(tokens_for(small(), 1, 3), tokens_for(small(), 1, 3)).backward();
  const auto unused_rows = tied->token_embedding->weight.grad().abs().sum(1);
  EXPECT_GT(unused_rows.min().item<double>(), 0) << "the head must reach every row of the table";
  EXPECT_NE(make(small(false))->named_parameters().find("head.weight"), nullptr);
}

TEST(Gpt, ParameterCountHasAClosedForm) {
  for (const bool tied : {true, false}) {
    GptOptions options{.vocab_size = 13,
                       .seq_len = 5,
                       .dim = 12,
                       .n_layers = 3,
                       .n_heads = 4,
                       .tie_embeddings = tied};
    std::int64_t counted = 0;
    for (const auto& parameter : make(options)->parameters()) counted += parameter.numel();
    // 12 d^2 + 13 d a block, 2 d in the last norm, the tables.
    EXPECT_EQ(counted, 3 * (12 * 144 + 13 * 12) + 2 * 12 + (tied ? 13 : 26) * 12 + 5 * 12);
    EXPECT_EQ(parameter_count(options), counted);
  }
}

TEST(Gpt, FlopsFollowTheStatedFormula) {
  const GptOptions tied{.vocab_size = 13, .seq_len = 5, .dim = 12, .n_layers = 3, .n_heads = 4};
  const double n = 3 * (12 * 144 + 13 * 12) + 2 * 12 + 13 * 12;
  EXPECT_DOUBLE_EQ(flops_per_token(tied, 4), 6 * n + 12 * 3 * 12 * 4);
  GptOptions untied = tied;
  untied.tie_embeddings = false;
  EXPECT_DOUBLE_EQ(flops_per_token(untied, 4), flops_per_token(tied, 4));
}

TEST(Gpt, InitialValuesFollowGpt2) {
  const GptOptions options{
      .vocab_size = 256, .seq_len = 256, .dim = 128, .n_layers = 8, .tie_embeddings = false};
  const auto model = make(options);
  for (const auto& item : model->named_parameters()) {
    const std::string& name = item.key();
    const auto& values = item.value();
    const bool norm = name.find("norm") != std::string::npos;
    if (name.ends_with(".bias")) {
      EXPECT_EQ(values.abs().max().item<double>(), 0) << name;
    } else if (norm) {
      EXPECT_EQ((values - 1).abs().max().item<double>(), 0) << name;
    } else {
      const double std = name.ends_with("projection.weight") ? 0.02 / 4 : 0.02;
      EXPECT_NEAR(values.std().item<double>() / std, 1.0, 0.03) << name;
      EXPECT_NEAR(values.mean().item<double>() / std, 0.0, 0.03) << name;
    }
  }
}

TEST(Gpt, SeedDecidesTheInitialValues) {
  const auto first = make(small())->parameters();
  const auto second = make(small())->parameters();
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(first[i].equal(second[i]));
}

TEST(Gpt, ParametersHaveTheDocumentedNames) {
  std::set<std::string> names;
  for (const auto& item : make(small())->named_parameters()) names.insert(item.key());
  for (const char* name :
       {"token_embedding.weight", "position_embedding.weight", "blocks.0.attention.qkv.weight",
        "blocks.1.attention.projection.bias", "blocks.1.mlp.up.weight",
        "blocks.0.mlp.projection.weight", "blocks.0.mlp_norm.bias", "final_norm.weight"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_EQ(names.size(), 2u + 2 * 12 + 2);
}

TEST(Gpt, GradientsEqualFiniteDifferences) {
  auto model = make(small());
  const auto tokens = tokens_for(small(), 2, 5);
  const auto targets = tokens.flip(1);
  model->loss(tokens, targets).backward();
  const torch::NoGradGuard no_grad;
  const double step = 1e-5;
  for (const auto& item : model->named_parameters()) {
    auto value = item.value().view({-1})[1];
    const double before = value.item<double>();
    value.fill_(before + step);
    const double above = model->loss(tokens, targets).item<double>();
    value.fill_(before - step);
    const double below = model->loss(tokens, targets).item<double>();
    value.fill_(before);
    const double slope = item.value().grad().view({-1})[1].item<double>();
    EXPECT_NEAR(slope, (above - below) / (2 * step), 1e-8) << item.key();
  }
}

TEST(Gpt, AnEmptyBatchPassesThrough) {
  auto model = make(small());
  const auto logits = model->forward(torch::zeros({0, 5}, torch::kLong));
  EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{0, 5, 11}));
}

// Tensors that wait for backward, by what of the graph is alive.
std::size_t nodes_of(const at::Tensor& loss) {
  std::set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> pending = {loss.grad_fn().get()};
  while (!pending.empty()) {
    const auto* node = pending.back();
    pending.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    for (const auto& edge : node->next_edges()) pending.push_back(edge.function.get());
  }
  return seen.size();
}

TEST(Gpt, RecomputedBlocksGiveTheSameGradients) {
  GptOptions options = small();
  options.n_layers = 4;
  const at::Tensor tokens = tokens_for(options, 2, 6);
  auto plain = make(options);
  const at::Tensor expected = plain->loss(tokens, tokens.flip(1));
  std::size_t nodes = nodes_of(expected);
  expected.backward();
  for (const std::int64_t every : {4, 2, 1}) {
    options.recompute_every = every;
    auto model = make(options);
    const at::Tensor loss = model->loss(tokens, tokens.flip(1));
    EXPECT_LT(nodes_of(loss), std::exchange(nodes, nodes_of(loss)));
    loss.backward();
    EXPECT_EQ(loss.item<double>(), expected.item<double>());
    const auto parameters = model->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_LE(max_difference(parameters[i].grad(), plain->parameters()[i].grad()), 1e-14);
    }
  }
}

TEST(Gpt, NamesWhatCannotBeUsed) {
  GptOptions options = small();
  options.n_heads = 3;
  EXPECT_THAT(error_of([&] { Gpt model(options); }), HasSubstr("n_heads 3 must divide dim 8"));
  options = small();
  options.n_layers = 0;
  EXPECT_THAT(error_of([&] { Gpt model(options); }), HasSubstr("n_layers must be at least 1"));
  options = small();
  options.norm_eps = std::nan("");
  EXPECT_THAT(error_of([&] { Gpt model(options); }), HasSubstr("norm_eps"));
  options = small();
  options.recompute_every = -1;
  EXPECT_THAT(error_of([&] { Gpt model(options); }), HasSubstr("recompute_every must be 0"));
  auto model = make(small());
  EXPECT_THAT(error_of([&] {
                model->forward(torch::zeros({1, 8}, torch::kLong));
              }),
              HasSubstr("8 tokens is longer than the model's seq_len 7"));
  EXPECT_THAT(error_of([&] { model->forward(torch::zeros({3}, torch::kLong)); }),
              HasSubstr("[batch, seq]"));
}

}  // namespace
}  // namespace fullshard::models
