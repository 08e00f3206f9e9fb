#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/training.h"

// Layers whose parameters are in bf16 are given inputs in fp32: each computes what it would if it
// had been converted and given bf16.

namespace fullshard::shard {
namespace {

struct Case {
  std::string name;
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<at::Tensor(torch::nn::Module&, const at::Tensor&)> run;
  std::vector<std::int64_t> shape;
};

template <typename Layer, typename... Arguments>
Case layer(std::string name, std::vector<std::int64_t> shape, Arguments... arguments) {
  return {std::move(name), [=] { return std::make_shared<Layer>(arguments...); },
          [](torch::nn::Module& module, const at::Tensor& x) {
            return dynamic_cast<Layer&>(module).forward(x);
          },
          std::move(shape)};
}

template <typename Layer, typename Options>
Case recurrent(std::string name, Options options) {
  return {std::move(name),
          [=] { return std::make_shared<Layer>(options); },
          [](torch::nn::Module& module, const at::Tensor& x) {
            return std::get<0>(dynamic_cast<Layer&>(module).forward(x));
          },
          {5, 3, 6}};
}

std::vector<Case> cases() {
  using namespace torch::nn;
  return {
      layer<LinearImpl>("Linear", {3, 6}, 6, 4),
      layer<LinearImpl>("LinearOverSequences", {2, 3, 6}, 6, 4),
      layer<LinearImpl>("LinearWithoutBias", {3, 6}, LinearOptions(6, 4).bias(false)),
      layer<Conv1dImpl>("Conv1d", {2, 6, 7}, Conv1dOptions(6, 4, 3)),
      layer<Conv2dImpl>("Conv2d", {2, 6, 5, 7}, Conv2dOptions(6, 4, 3)),
      layer<ConvTranspose2dImpl>("ConvTranspose2d", {2, 6, 5, 7}, ConvTranspose2dOptions(6, 4, 3)),
      layer<LayerNormImpl>("LayerNorm", {3, 6}, LayerNormOptions({6})),
      layer<GroupNormImpl>("GroupNorm", {3, 6, 5}, GroupNormOptions(2, 6)),
      layer<PReLUImpl>("PReLU", {3, 6}, PReLUOptions()),
      recurrent<LSTMImpl>("Lstm", LSTMOptions(6, 5)),
      recurrent<GRUImpl>("Gru", GRUOptions(6, 5).num_layers(2)),
      {"Attention",
       [] { return std::make_shared<MultiheadAttentionImpl>(MultiheadAttentionOptions(6, 2)); },
       [](torch::nn::Module& module, const at::Tensor& x) {
         return std::get<0>(dynamic_cast<MultiheadAttentionImpl&>(module).forward(x, x, x));
       },
       {5, 3, 6}},
  };
}

class OperandCast : public ::testing::TestWithParam<Case> {};

TEST_P(OperandCast, ComputesInTheParametersDtype) {
  const Case& one = GetParam();
  torch::manual_seed(3);
  const auto model = one.make();
  const auto plain = one.make();
  {
    const at::NoGradGuard no_grad;
    const auto values = model->named_parameters();
    for (const auto& item : plain->named_parameters()) item.value().copy_(values[item.key()]);
  }
  plain->to(at::kBFloat16);
  comm::World world = comm::single_rank();
  const auto sharded =
      fully_shard(model, world.mesh(), {.mixed_precision = {.param_dtype = at::kBFloat16}});
  const at::Tensor x = at::randn(one.shape).requires_grad_();
  const at::Tensor narrow = x.detach().to(at::kBFloat16).requires_grad_();
  const at::Tensor result = one.run(*model, x);
  const at::Tensor expected = one.run(*plain, narrow);
  ASSERT_EQ(result.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(result, expected));
  result.sum().backward();
  expected.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(x.grad(), narrow.grad().to(at::kFloat)));
  const auto gradients = plain->named_parameters();
  for (const auto& shard : sharded.named_parameters()) {
    const at::Tensor whole = gradients[shard.name].grad().to(at::kFloat);
    EXPECT_TRUE(at::equal(shard.tensor.grad(), whole.flatten())) << shard.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Layers, OperandCast, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

struct Scaled : torch::nn::Module {
  Scaled() { scale = register_parameter("scale", at::full({4}, 1.5)); }
  at::Tensor scale;
};

TEST(OperandCast, OperatorsThatPromoteAreLeftAlone) {
  const auto model = std::make_shared<Scaled>();
  comm::World world = comm::single_rank();
  const auto sharded =
      fully_shard(model, world.mesh(), {.mixed_precision = {.param_dtype = at::kBFloat16}});
  const at::Tensor x = at::full({4}, 1.0009765625);
  EXPECT_TRUE(at::equal(x * model->scale, x * 1.5));
  EXPECT_EQ(x.to(model->scale).scalar_type(), at::kBFloat16);
  EXPECT_EQ(model->scale.to(x).scalar_type(), at::kFloat);
}

TEST(OperandCast, CanBeTurnedOff) {
  const auto model = std::make_shared<torch::nn::LinearImpl>(3, 2);
  comm::World world = comm::single_rank();
  const auto sharded = fully_shard(
      model, world.mesh(),
      {.mixed_precision = {.param_dtype = at::kBFloat16, .cast_forward_inputs = false}});
  EXPECT_THROW(model->forward(at::randn({4, 3})), c10::Error);
  EXPECT_EQ(model->forward(at::randn({4, 3}, at::kBFloat16)).scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace fullshard::shard
