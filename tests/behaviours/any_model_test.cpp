#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <thread>

#include "support/equality.h"

// Ways of using a model that hooks on forward would miss. All of them must train as if unsharded.

namespace fullshard::shard {
namespace {

using testing::Batch;
using testing::Problem;
using testing::Turn;

// Four layers in a list, each a unit, that can be called by any method in any order.
struct Stack : testing::Model {
  Stack() {
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(5, 5));
    register_module("layers", layers);
  }
  at::Tensor layer(std::size_t i, const at::Tensor& x) {
    return torch::tanh(layers[i]->as<torch::nn::Linear>()->forward(x));
  }
  at::Tensor encode(const at::Tensor& x) { return cached = layer(1, layer(0, x)); }
  at::Tensor decode(const at::Tensor& h) { return layer(3, layer(2, h)); }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    return (decode(encode(x)) - y).pow(2).mean();
  }
  torch::nn::ModuleList layers;
  at::Tensor cached;
};

const Problem kStack = testing::problem_of<Stack>(5, 5);

using StackPasses = std::function<void(Stack&, const Batch&)>;

void expect_equal(const StackPasses& passes) {
  testing::expect_equal_passes_for_strategies(
      kStack,
      [&](testing::Model& model, const Batch& batch, const Turn&) {
        passes(static_cast<Stack&>(model), batch);
      },
      {.ranks = 3, .training = {.steps = 4}});
}

TEST(AnyModel, TwoForwardsThenTwoBackwards) {
  expect_equal([](Stack& model, const Batch& batch) {
    const at::Tensor first = model.loss(batch.x, batch.y);
    const at::Tensor second = model.loss(batch.y, batch.x);
    first.backward();
    second.backward();
  });
  expect_equal([](Stack& model, const Batch& batch) {
    const at::Tensor first = model.loss(batch.x, batch.y);
    const at::Tensor second = model.encode(batch.y).abs().mean();
    second.backward();
    first.backward();
  });
}

TEST(AnyModel, RetainedGraphs) {
  expect_equal([](Stack& model, const Batch& batch) {
    const at::Tensor loss = model.loss(batch.x, batch.y);
    const at::Tensor trunk = model.cached.abs().mean();
    loss.backward({}, /*retain_graph=*/true);
    trunk.backward({}, /*retain_graph=*/true);
    loss.backward();
  });
}

TEST(AnyModel, LossesOnCachedTensors) {
  expect_equal([](Stack& model, const Batch& batch) {
    model.encode(batch.x);
    model.layer(3, batch.y);  // something else comes between, without a loss of its own
    const at::Tensor first = model.cached;
    model.encode(batch.y);
    ((first - model.cached).pow(2).mean() + first.abs().mean()).backward();
  });
}

TEST(AnyModel, MethodsOtherThanForward) {
  expect_equal([](Stack& model, const Batch& batch) {
    const auto parameters = model.named_parameters();
    const at::Tensor by_hand = at::linear(batch.x, parameters["layers.2.weight"].t());
    (model.decode(by_hand).mean() + parameters["layers.0.bias"].pow(2).sum()).backward();
  });
}

TEST(AnyModel, AUnitUsedSeveralTimesInAStep) {
  expect_equal([](Stack& model, const Batch& batch) {
    at::Tensor h = batch.x;
    for (const std::size_t i : {0U, 1U, 0U, 2U, 2U, 0U, 3U, 1U}) h = model.layer(i, h);
    (h - batch.y).pow(2).mean().backward();
  });
}

TEST(AnyModel, UnitsThatNoLossDependsOn) {
  expect_equal([](Stack& model, const Batch& batch) {
    model.layer(2, batch.x);
    const at::Tensor h = model.layer(0, batch.x);
    model.layer(3, h.detach());
    (h - batch.y).pow(2).mean().backward();
  });
}

TEST(AnyModel, GradientPenalty) {
  expect_equal([](Stack& model, const Batch& batch) {
    const at::Tensor x = batch.x.detach().clone().requires_grad_();
    const at::Tensor out = model.decode(model.encode(x));
    const at::Tensor slope = torch::autograd::grad({out.sum()}, {x}, {}, true, true)[0];
    const at::Tensor penalty = (slope.pow(2).sum(1) - 1).pow(2).mean();
    ((out - batch.y).pow(2).mean() + 0.3 * penalty).backward();
  });
}

// The inner gradient is of the parameters themselves. It is not averaged over the ranks, so the
// inner loss is one that all ranks share.
TEST(AnyModel, SecondOrderGradientsOfParameters) {
  expect_equal([](Stack& model, const Batch& batch) {
    const at::Tensor same = at::linspace(-1, 1, 10, at::kDouble).reshape({2, 5});
    const at::Tensor inner = model.loss(same, same * same);
    const auto parameters = testing::unique_parameters(model);
    const auto slopes = torch::autograd::grad({inner}, parameters, {}, true, true);
    at::Tensor sum = model.loss(batch.x, batch.y);
    for (const at::Tensor& slope : slopes) sum = sum + slope.pow(2).sum();
    sum.backward();
  });
}

TEST(AnyModel, ForwardAndBackwardInThreadsOfTheUser) {
  expect_equal([](Stack& model, const Batch& batch) {
    at::Tensor loss;
    std::thread([&] { loss = model.loss(batch.x, batch.y); }).join();
    loss.backward();
    std::thread([&] { model.encode(batch.y).abs().mean().backward(); }).join();
  });
}

template <typename Guard>
void expect_equal_outputs() {
  const auto plain = kStack.build();
  const Batch batch = kStack.batch(0);
  const Guard guard;
  const at::Tensor expected = plain->loss(batch.x, batch.y);
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = kStack.build();
    const auto sharded = fully_shard(model, world.mesh());
    const Guard guard_of_this_thread;
    for (int i = 0; i < 3; ++i) {
      const at::Tensor loss = model->loss(batch.x, batch.y);
      EXPECT_FALSE(loss.requires_grad());
      EXPECT_TRUE(at::allclose(loss, expected, 1e-12, 1e-12));
    }
  });
}

TEST(AnyModel, WithoutGradients) { expect_equal_outputs<at::NoGradGuard>(); }

TEST(AnyModel, InInferenceMode) { expect_equal_outputs<c10::InferenceMode>(); }

TEST(AnyModel, PassesWithoutGradientsBetweenForwardAndBackward) {
  expect_equal([](Stack& model, const Batch& batch) {
    const at::Tensor loss = model.loss(batch.x, batch.y);
    {
      const at::NoGradGuard no_grad;
      model.encode(batch.y);
    }
    {
      const c10::InferenceMode inference;
      model.decode(batch.y.clone());
    }
    loss.backward();
  });
}

// One operator may read parameters of several units: a tied weight with a bias of one's own, a
// penalty over everything.
struct Mixed : testing::Model {
  Mixed() {
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(5, 5));
    register_module("layers", layers);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    const auto part = [&](std::size_t i) { return layers[i]->as<torch::nn::Linear>(); };
    at::Tensor h = torch::tanh(at::linear(x, part(0)->weight, part(1)->bias));
    h = torch::tanh(at::linear(h, part(2)->weight, part(3)->bias));
    h = at::addcmul(part(0)->bias, h, part(1)->weight[0]);
    h = torch::tanh(at::linear(h, part(3)->weight, part(2)->bias));
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : parameters()) all.push_back(parameter.flatten());
    return (h - y).pow(2).mean() + 0.1 * at::cat(all).pow(2).sum();
  }
  torch::nn::ModuleList layers;
};

TEST(AnyModel, OperatorsOverParametersOfSeveralUnits) {
  const Problem task = testing::problem_of<Mixed>(5, 5);
  const auto passes = [&](testing::Model& model, const Batch& batch, const Turn&) {
    {
      const at::NoGradGuard no_grad;
      model.loss(batch.x, batch.y);
    }
    model.loss(batch.x, batch.y).backward();
  };
  testing::expect_equal_passes_for_strategies(task, passes, {.training = {.steps = 5}});
}

}  // namespace
}  // namespace fullshard::shard
