#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <tuple>
#include <vector>

#include "support/equality.h"
#include "support/passes_by_rank.h"

// Promise 1 over kinds of models: every strategy and granularity, worlds of 1 to 5 ranks.

namespace fullshard::shard {
namespace {

using testing::Batch;
using testing::EqualityOptions;
using testing::Problem;

constexpr std::int64_t kRows = 60;  // divides by 1 to 5 ranks

struct Mlp : testing::Model {
  Mlp() {
    layers =
        register_module("layers", torch::nn::Sequential(torch::nn::Linear(9, 13), torch::nn::Tanh(),
                                                        torch::nn::Linear(13, 7), torch::nn::Tanh(),
                                                        torch::nn::Linear(7, 5)));
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    return (layers->forward(x) - y).pow(2).mean();
  }
  torch::nn::Sequential layers;
};

// In training mode: every rank normalises by the statistics of its own rows.
struct ConvolutionNet : testing::Model {
  ConvolutionNet() : first_norm(5), second_norm(4), last(4 * 2 * 2, 3) {
    const auto convolution = [](std::int64_t in, std::int64_t out, std::int64_t stride) {
      return torch::nn::Conv2d(
          torch::nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false));
    };
    first = register_module("first", convolution(2, 5, 1));
    register_module("first_norm", first_norm);
    second = register_module("second", convolution(5, 4, 2));
    register_module("second_norm", second_norm);
    register_module("last", last);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    at::Tensor h = torch::relu(first_norm(first(x.view({-1, 2, 4, 4}))));
    h = torch::relu(second_norm(second(h)));
    return (last(h.flatten(1)) - y).pow(2).mean();
  }
  torch::nn::Conv2d first{nullptr}, second{nullptr};
  torch::nn::BatchNorm2d first_norm, second_norm;
  torch::nn::Linear last;
};

struct Recurrent : testing::Model {
  Recurrent()
      : lstm(torch::nn::LSTMOptions(3, 4).num_layers(2).bidirectional(true).batch_first(true)),
        last(8, 3) {
    register_module("lstm", lstm);
    register_module("last", last);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    const at::Tensor h = std::get<0>(lstm(x.view({-1, 5, 3})));
    return (last(h.select(1, -1)) - y).pow(2).mean();
  }
  torch::nn::LSTM lstm;
  torch::nn::Linear last;
};

struct EncoderDecoder : testing::Model {
  EncoderDecoder()
      : transformer(torch::nn::TransformerOptions(4, 2, 2, 2).dim_feedforward(9).dropout(0)) {
    register_module("transformer", transformer);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    const at::Tensor source = x.view({-1, 3, 4}).transpose(0, 1);
    const at::Tensor target = y.view({-1, 3, 4}).transpose(0, 1);
    return (transformer(source, target) - target.roll(1, 0)).pow(2).mean();
  }
  torch::nn::Transformer transformer;
};

struct Attention : testing::Model {
  Attention() : attention(torch::nn::MultiheadAttentionOptions(4, 2).add_bias_kv(true)) {
    query = register_parameter("query", at::linspace(-1, 1, 12).view({3, 1, 4}));
    register_module("attention", attention);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    const at::Tensor source = x.view({-1, 3, 4}).transpose(0, 1);
    const at::Tensor asked = query.expand({3, source.size(1), 4});
    const at::Tensor out = std::get<0>(attention(asked, source, source));
    return (out.transpose(0, 1).flatten(1) - y).pow(2).mean();
  }
  at::Tensor query;
  torch::nn::MultiheadAttention attention;
};

struct Subject {
  std::string name;
  Problem problem;
  bool by_rank = false;                   ///< the loss depends on which rows are together
  std::vector<ParameterRule> heads = {};  ///< cuts between attention heads
};

// Of torch's attention over heads of `width`.
std::vector<ParameterRule> between_heads(std::int64_t width) {
  return {{.pattern = "*in_proj_weight", .atom = layout::Atom::kRow, .group = width},
          {.pattern = "*out_proj.weight", .atom = layout::Atom::kColumn, .group = width}};
}

template <typename Net>
Subject subject(std::string name, std::int64_t inputs, std::int64_t outputs, bool by_rank = false,
                std::vector<ParameterRule> heads = {}) {
  Problem problem = testing::problem_of<Net>(inputs, outputs);
  problem.batch = [=](std::int64_t step) {
    const auto random = at::make_generator<at::CPUGeneratorImpl>(500 + step);
    return Batch{at::randn({kRows, inputs}, random, at::kDouble),
                 at::randn({kRows, outputs}, random, at::kDouble)};
  };
  return {std::move(name), std::move(problem), by_rank, std::move(heads)};
}

Subject gpt() {
  Problem problem = testing::gpt_problem(17, 6, 2, /*tied=*/true);
  problem.batch = [](std::int64_t step) {
    const auto random = at::make_generator<at::CPUGeneratorImpl>(500 + step);
    const at::Tensor tokens = at::randint(17, {kRows, 5}, random, at::kLong);
    return Batch{tokens.narrow(1, 0, 4), tokens.narrow(1, 1, 4)};
  };
  return {"Gpt", std::move(problem)};
}

const std::vector<Subject>& subjects() {
  static const std::vector<Subject> all = {
      subject<Mlp>("Mlp", 9, 5),
      gpt(),
      subject<ConvolutionNet>("ConvolutionBatchNorm", 2 * 4 * 4, 3, /*by_rank=*/true),
      subject<Recurrent>("Lstm", 5 * 3, 3),
      subject<EncoderDecoder>("EncoderDecoder", 3 * 4, 3 * 4, false, between_heads(2)),
      subject<Attention>("MultiheadAttention", 3 * 4, 3 * 4, false, between_heads(2))};
  return all;
}

using Point = std::tuple<std::size_t, int>;

class ModelGrid : public ::testing::TestWithParam<Point> {
 protected:
  void expect_equal(const FullyShardOptions& sharding, int replicate = 1) {
    const auto [index, ranks] = GetParam();
    const Subject& subject = subjects()[index];
    const testing::Passes passes = testing::passes_by_rank(subject.by_rank, ranks);
    const testing::TrainOptions training{.steps = 3, .optimizer = optimizer_};
    if (expected_.empty()) expected_ = testing::train_passes(subject.problem, passes, training);
    testing::expect_passes_give(expected_, subject.problem, passes,
                                {.ranks = ranks,
                                 .training = training,
                                 .sharding = sharding,
                                 .mesh = {.replicate = replicate}});
  }

  void expect_equal_for_strategies(FullyShardOptions sharding) {
    for (const auto strategy :
         {ShardingStrategy::FULL_SHARD, ShardingStrategy::SHARD_GRAD_OP, ShardingStrategy::NO_SHARD,
          ShardingStrategy::SHARD_OPTIMIZER_ONLY}) {
      SCOPED_TRACE("strategy " + std::to_string(static_cast<int>(strategy)));
      sharding.sharding_strategy = strategy;
      expect_equal(sharding);
    }
  }

  void expect_equal_on_replicas(FullyShardOptions sharding, int replicate) {
    if (std::get<1>(GetParam()) % replicate != 0) return;
    SCOPED_TRACE("replicas: " + std::to_string(replicate));
    sharding.sharding_strategy = ShardingStrategy::HYBRID_SHARD;
    expect_equal(sharding, replicate);
  }

  void expect_equal_for_all() {
    expect_equal_for_strategies({});
    for (const int replicate : {2, 3, 4, 5}) expect_equal_on_replicas({}, replicate);
  }

  // On one mesh of replicas too.
  void expect_equal_with(const FullyShardOptions& sharding) {
    expect_equal_for_strategies(sharding);
    if (std::get<1>(GetParam()) == 4) expect_equal_on_replicas(sharding, 2);
  }

  testing::Optimizer optimizer_ = testing::Optimizer::kSgd;

 private:
  StateDict expected_;
};

TEST_P(ModelGrid, EveryStrategy) { expect_equal_for_all(); }

TEST_P(ModelGrid, EveryGranularity) {
  using layout::Atom;
  for (const auto atom :
       {Atom::kElement, Atom::kRow, Atom::kColumn, Atom::kParameter, Atom::kUnit}) {
    for (const std::int64_t group : {1, 3}) {
      if (group > 1 && atom != Atom::kRow && atom != Atom::kColumn) continue;
      SCOPED_TRACE("atom " + std::to_string(static_cast<int>(atom)));
      expect_equal_with({.rules = {{.pattern = "*", .atom = atom, .group = group}}});
    }
  }
  const std::vector<ParameterRule>& heads = subjects()[std::get<0>(GetParam())].heads;
  if (!heads.empty()) expect_equal_with({.rules = heads});
  expect_equal_with({.auto_wrap_policy = size_based(1)});
  expect_equal_with({.auto_wrap_policy = size_based(60), .min_shard_elements = 20});
}

// Of models all of whose gradients are more than rounding errors, of which AdamW makes steps of
// full size.
class ModelGridAdamW : public ModelGrid {};

TEST_P(ModelGridAdamW, EveryStrategy) {
  optimizer_ = testing::Optimizer::kAdamW;
  expect_equal_for_all();
}

std::string name_of(const ::testing::TestParamInfo<Point>& info) {
  const auto [index, ranks] = info.param;
  return subjects()[index].name + "_R" + std::to_string(ranks);
}

INSTANTIATE_TEST_SUITE_P(Models, ModelGrid,
                         ::testing::Combine(::testing::Range(std::size_t{0}, subjects().size()),
                                            ::testing::Values(1, 2, 3, 4, 5)),
                         name_of);

constexpr std::size_t kMlp = 0, kGpt = 1, kLstm = 3;  // in subjects()
INSTANTIATE_TEST_SUITE_P(Models, ModelGridAdamW,
                         ::testing::Combine(::testing::Values(kMlp, kGpt, kLstm),
                                            ::testing::Values(1, 2, 3, 4, 5)),
                         name_of);

}  // namespace
}  // namespace fullshard::shard
