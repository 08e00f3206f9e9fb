#include "fullshard/models/generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fullshard/base/error.h"

namespace fullshard::models {
namespace {

using testing::HasSubstr;

Gpt make() {
  torch::manual_seed(1);
  Gpt model(GptOptions{.vocab_size = 11, .seq_len = 4, .dim = 8, .n_layers = 1, .n_heads = 2});
  // Initial logits are nearly flat; wider ones let choices differ.
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) parameter.mul_(20);
  return model;
}

at::Tensor prompt() { return torch::tensor({3, 1, 4}, torch::kLong); }

TEST(Generate, GreedyTakesTheLikeliestTokenOfEachPrefix) {
  auto model = make();
  const auto made = generate(model, prompt(), 6, 0.0);
  auto tokens = prompt();
  for (std::int64_t i = 0; i < 6; ++i) {
    const auto context = tokens.slice(0, std::max<std::int64_t>(0, tokens.numel() - 4));
    const auto next = model->forward(context.unsqueeze(0))[0][-1].argmax();
    EXPECT_EQ(made[i].item<std::int64_t>(), next.item<std::int64_t>()) << i;
    tokens = torch::cat({tokens, next.view({1})});
  }
}

TEST(Generate, SamplesFollowTheGeneratorAlone) {
  auto model = make();
  const auto draw = [&](std::uint64_t seed) {
    return generate(model, prompt(), 40, 1.0, at::detail::createCPUGenerator(seed));
  };
  EXPECT_TRUE(draw(7).equal(draw(7)));
  EXPECT_FALSE(draw(7).equal(draw(8)));
}

TEST(Generate, LowTemperatureApproachesGreedy) {
  auto model = make();
  const auto cold = generate(model, prompt(), 20, 1e-4, at::detail::createCPUGenerator(2));
  EXPECT_TRUE(cold.equal(generate(model, prompt(), 20, 0.0)));
}

TEST(Generate, SamplesHaveTheModelsFrequencies) {
  auto model = make();
  auto generator = at::detail::createCPUGenerator(3);
  const auto expected = model->forward(prompt().unsqueeze(0))[0][-1].softmax(-1);
  auto counts = torch::zeros({11}, torch::kFloat);
  constexpr int kDraws = 2000;
  for (int i = 0; i < kDraws; ++i) {
    counts[generate(model, prompt(), 1, 1.0, generator).item<std::int64_t>()] += 1;
  }
  // Five standard deviations of a binomial frequency at its widest.
  EXPECT_LT((counts / kDraws - expected).abs().max().item<double>(), 5 * 0.5 / std::sqrt(kDraws));
}

TEST(Generate, LeavesNoGraphAndAllowsNothingToMake) {
  auto model = make();
  EXPECT_FALSE(generate(model, prompt(), 2, 0.0).requires_grad());
  EXPECT_EQ(generate(model, prompt(), 0, 0.0).numel(), 0);
}

TEST(Generate, NamesWhatCannotBeUsed) {
  auto model = make();
  const auto error_of = [&](const at::Tensor& start, std::int64_t count, double temperature) {
    try {
      generate(model, start, count, temperature);
    } catch (const base::Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error_of(torch::zeros({0}, torch::kLong), 1, 0), HasSubstr("at least one token"));
  EXPECT_THAT(error_of(prompt(), -1, 0), HasSubstr("-1 tokens"));
  EXPECT_THAT(error_of(prompt(), 1, -0.5), HasSubstr("not -0.5"));
}

}  // namespace
}  // namespace fullshard::models
