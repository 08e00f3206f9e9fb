#include "fullshard/optim/adamw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>

#include "fullshard/base/error.h"
#include "fullshard/optim/state_bytes.h"

namespace fullshard::optim {
namespace {

using testing::HasSubstr;

/// Whole parameters of a small model, in double unless told otherwise.
std::vector<at::Tensor> whole_parameters(torch::Dtype dtype = torch::kDouble) {
  torch::manual_seed(2);
  return {torch::randn({5, 3}, dtype), torch::randn({5}, dtype), torch::randn({4, 5}, dtype),
          torch::randn({}, dtype)};
}

const std::vector<std::string> kNames = {"up.weight", "up.bias", "head.weight", "scale"};

/// This rank's parts: parameter i is cut into `world` runs of nearly equal length.
std::vector<state::ShardedTensor> cut(const std::vector<at::Tensor>& whole, std::int64_t rank,
                                      std::int64_t world) {
  std::vector<state::ShardedTensor> parts;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const std::int64_t numel = whole[i].numel();
    const std::int64_t begin = numel * rank / world;
    const std::int64_t end = numel * (rank + 1) / world;
    auto tensor = whole[i].reshape({-1}).slice(0, begin, end).clone().requires_grad_(true);
    parts.push_back({kNames[i], whole[i].sizes().vec(), begin, end, tensor, false});
  }
  return parts;
}

std::vector<state::ShardedTensor> all_of(const std::vector<at::Tensor>& whole) {
  return cut(whole, 0, 1);
}

/// The gradient of parameter i at a step, different for every element and step.
at::Tensor gradient(const at::Tensor& like, std::size_t i, int step) {
  const auto index = torch::arange(like.numel(), like.options().requires_grad(false));
  return torch::sin(index * 0.7 + static_cast<double>(i) + 1.3 * step).view(like.sizes());
}

void give_gradients(std::vector<state::ShardedTensor>& parts, const std::vector<at::Tensor>& whole,
                    int step) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].tensor.mutable_grad() =
        gradient(whole[i], i, step).reshape({-1}).slice(0, parts[i].begin, parts[i].end).clone();
  }
}

// Two moments an element, and a step of 4 bytes a parameter; libtorch keeps its step in an integer.
TEST(StateBytes, AreThoseOfTheMoments) {
  const auto whole = whole_parameters();
  const std::int64_t elements = 15 + 5 + 20 + 1;
  auto parts = all_of(whole);
  AdamW ours(parts, {});
  std::vector<at::Tensor> tensors;
  for (const auto& part : parts) tensors.push_back(part.tensor);
  torch::optim::AdamW adamw(tensors);
  torch::optim::SGD sgd(tensors, torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD plain_sgd(tensors, 0.1);
  torch::optim::Adagrad adagrad(tensors);
  torch::optim::RMSprop rmsprop(tensors);
  EXPECT_EQ(state_bytes(ours), 0);
  give_gradients(parts, whole, 0);
  ours.step();
  EXPECT_EQ(state_bytes(ours), 2 * 8 * elements + 4 * 4);
  for (torch::optim::Optimizer* optimizer : std::initializer_list<torch::optim::Optimizer*>{
           &adamw, &sgd, &plain_sgd, &adagrad, &rmsprop}) {
    optimizer->step();
  }
  EXPECT_EQ(state_bytes(adamw), 2 * 8 * elements);
  EXPECT_EQ(state_bytes(sgd), 8 * elements);
  EXPECT_EQ(state_bytes(plain_sgd), 0);
  EXPECT_EQ(state_bytes(adagrad), 8 * elements);
  EXPECT_EQ(state_bytes(rmsprop), 8 * elements);
}

double max_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0 : (a.detach() - b.detach()).abs().max().item<double>();
}

GroupRule rule(const char* pattern, std::optional<double> decay, std::optional<double> scale) {
  GroupRule made;
  made.pattern = pattern;
  made.weight_decay = decay;
  made.lr_scale = scale;
  return made;
}

constexpr AdamWOptions kOptions{
    .lr = 0.03, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-7, .weight_decay = 0.2};

/// torch's own AdamW on the whole parameters, with the groups of `grouped_rules`.
class Reference {
 public:
  explicit Reference(const std::vector<at::Tensor>& whole) {
    for (const auto& value : whole) values.push_back(value.clone().requires_grad_(true));
    const auto options = [](double lr, double decay) {
      return std::make_unique<torch::optim::AdamWOptions>(
          torch::optim::AdamWOptions(lr).betas({0.8, 0.95}).eps(1e-7).weight_decay(decay));
    };
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{values[0]}, options(0.03, 0.2));
    groups.emplace_back(std::vector<at::Tensor>{values[1], values[3]}, options(0.03, 0));
    groups.emplace_back(std::vector<at::Tensor>{values[2]}, options(0.003, 0.5));
    optimizer = std::make_unique<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(0.03));
  }

  void step(int step, double scale = 1, std::size_t without = 99) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i].mutable_grad() =
          i == without ? at::Tensor() : gradient(values[i], i, step).clone() * scale;
    }
    optimizer->step();
  }

  std::vector<at::Tensor> values;
  std::unique_ptr<torch::optim::AdamW> optimizer;
};

std::vector<GroupRule> grouped_rules() {
  auto rules = default_no_decay_rules();
  rules.insert(rules.begin(), rule("head.*", 0.5, 0.1));
  return rules;
}

void expect_equal(const std::vector<state::ShardedTensor>& parts, const Reference& reference,
                  double tolerance) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto expected = reference.values[i].reshape({-1}).slice(0, parts[i].begin, parts[i].end);
    EXPECT_LE(max_difference(parts[i].tensor, expected), tolerance) << parts[i].name;
  }
}

class ShardedAdamW : public testing::TestWithParam<std::int64_t> {};

TEST_P(ShardedAdamW, EqualsTorchOnTheWholeParameters) {
  const auto whole = whole_parameters();
  for (std::int64_t rank = 0; rank < GetParam(); ++rank) {
    Reference reference(whole);
    auto parts = cut(whole, rank, GetParam());
    AdamW optimizer(parts, kOptions, grouped_rules());
    for (int step = 0; step < 20; ++step) {
      give_gradients(parts, whole, step);
      optimizer.step();
      reference.step(step);
    }
    expect_equal(parts, reference, 1e-12);
    EXPECT_GT(max_difference(reference.values[0], whole[0]), 0.1);
  }
}

// 7 ranks leave some without an element of the scalar and of the bias.
INSTANTIATE_TEST_SUITE_P(Worlds, ShardedAdamW, testing::Values(1, 2, 3, 7));

TEST(AdamW, SkipsParametersWithoutGradientAndTheirCounters) {
  const auto whole = whole_parameters();
  Reference reference(whole);
  auto parts = all_of(whole);
  AdamW optimizer(parts, kOptions, grouped_rules());
  for (int step = 0; step < 12; ++step) {
    const std::size_t without = static_cast<std::size_t>(step) % 3;
    give_gradients(parts, whole, step);
    parts[without].tensor.mutable_grad() = at::Tensor();
    optimizer.step();
    reference.step(step, 1, without);
  }
  expect_equal(parts, reference, 1e-12);
  for (const auto& part : optimizer.state()) {
    if (part.name == "up.weight.step") EXPECT_EQ(part.tensor.item<float>(), 8);
    if (part.name == "scale.step") EXPECT_EQ(part.tensor.item<float>(), 12);
  }
}

TEST(AdamW, AParameterThatNeverHasAGradientNeverMoves) {
  const auto whole = whole_parameters();
  auto parts = all_of(whole);
  AdamW optimizer(parts, kOptions, {});
  for (int step = 0; step < 3; ++step) {
    give_gradients(parts, whole, step);
    parts[2].tensor.mutable_grad() = at::Tensor();
    optimizer.step();
  }
  EXPECT_TRUE(parts[2].tensor.detach().equal(whole[2].reshape({-1})));
  for (const auto& part : optimizer.state()) EXPECT_THAT(part.name, Not(HasSubstr("head")));
}

TEST(AdamW, ClippingEqualsScalingTheGradientsByHand) {
  for (const auto dtype : {torch::kDouble, torch::kFloat}) {
    const auto whole = whole_parameters(dtype);
    Reference reference(whole);
    auto parts = all_of(whole);
    AdamW optimizer(parts, kOptions, grouped_rules());
    for (int step = 0; step < 20; ++step) {
      const double coefficient = 1.0 / (1.7 + step);
      give_gradients(parts, whole, step);
      optimizer.step(kOptions.lr, coefficient);
      reference.step(step, coefficient);
      const double tolerance = dtype == torch::kDouble ? 1e-15 : 1e-7;
      EXPECT_LE(max_difference(parts[0].tensor.grad(), reference.values[0].grad().reshape({-1})),
                tolerance);
    }
    expect_equal(parts, reference, dtype == torch::kDouble ? 1e-12 : 1e-5);
  }
}

TEST(AdamW, FollowsTheRateOfEachStep) {
  const auto whole = whole_parameters();
  Reference reference(whole);
  auto parts = all_of(whole);
  AdamW optimizer(parts, kOptions, grouped_rules());
  for (int step = 0; step < 10; ++step) {
    const double lr = 0.01 * (step + 1);
    for (auto& group : reference.optimizer->param_groups()) {
      const bool head = group.params()[0].sizes().vec() == std::vector<std::int64_t>{4, 5};
      group.options().set_lr(head ? 0.1 * lr : lr);
    }
    give_gradients(parts, whole, step);
    optimizer.step(lr);
    reference.step(step);
  }
  expect_equal(parts, reference, 1e-12);
}

TEST(AdamW, StepsPartsThatAreViewsOfOneFlatBuffer) {
  const auto whole = whole_parameters();
  auto flat = torch::cat({whole[0].reshape({-1}), whole[1]});
  auto flat_grad = torch::cat({gradient(whole[0], 0, 0).reshape({-1}), gradient(whole[1], 1, 0)});
  std::vector<state::ShardedTensor> parts = {
      {"up.weight", {5, 3}, 0, 15, flat.narrow(0, 0, 15).detach(), true},
      {"up.bias", {5}, 0, 5, flat.narrow(0, 15, 5).detach(), true}};
  parts[0].tensor.mutable_grad() = flat_grad.narrow(0, 0, 15);
  parts[1].tensor.mutable_grad() = flat_grad.narrow(0, 15, 5);
  AdamW(parts, kOptions).step();

  Reference reference(whole);
  reference.step(0);
  EXPECT_LE(max_difference(flat.narrow(0, 0, 15), reference.values[0].reshape({-1})), 1e-13);
  EXPECT_LE(max_difference(flat.narrow(0, 15, 5), reference.values[1]), 1e-13);
}

TEST(AdamW, StateIsMadeAtTheFirstStepAndSharesMemory) {
  const auto whole = whole_parameters();
  auto parts = cut(whole, 1, 2);
  AdamW optimizer(parts, kOptions);
  EXPECT_TRUE(optimizer.state().empty());
  give_gradients(parts, whole, 0);
  optimizer.step();
  const auto first = optimizer.state();
  ASSERT_EQ(first.size(), 3 * parts.size());
  EXPECT_EQ(first[0].name, "up.weight.exp_avg");
  EXPECT_EQ(first[0].begin, parts[0].begin);
  EXPECT_EQ(first[0].global_shape, parts[0].global_shape);
  EXPECT_LE(max_difference(first[0].tensor, parts[0].tensor.grad() * 0.2), 1e-15);
  EXPECT_EQ(first[2].name, "up.weight.step");
  EXPECT_TRUE(first[2].replicated);
  optimizer.step();
  EXPECT_EQ(first[2].tensor.item<float>(), 2);
}

TEST(AdamW, StateCopiedIntoANewOptimizerContinuesBitwise) {
  const auto whole = whole_parameters();
  auto parts = all_of(whole);
  AdamW optimizer(parts, kOptions);
  for (int step = 0; step < 3; ++step) {
    give_gradients(parts, whole, step);
    optimizer.step();
  }
  std::vector<at::Tensor> values;
  for (const auto& part : parts) values.push_back(part.tensor.detach().view(part.global_shape));
  auto resumed_parts = all_of(values);
  AdamW resumed(resumed_parts, kOptions);
  resumed.create_state();
  const auto from = optimizer.state();
  const auto to = resumed.state();
  ASSERT_EQ(from.size(), to.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i].tensor.view({-1}).copy_(from[i].tensor);
  give_gradients(parts, whole, 3);
  give_gradients(resumed_parts, whole, 3);
  optimizer.step();
  resumed.step();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_TRUE(parts[i].tensor.equal(resumed_parts[i].tensor)) << parts[i].name;
  }
}

TEST(AdamW, ZeroGradDropsOrClears) {
  const auto whole = whole_parameters();
  auto parts = all_of(whole);
  AdamW optimizer(parts, kOptions);
  give_gradients(parts, whole, 0);
  const at::Tensor kept = parts[0].tensor.grad();
  optimizer.zero_grad(/*set_to_none=*/false);
  EXPECT_TRUE(parts[0].tensor.grad().is_same(kept));
  EXPECT_EQ(kept.abs().sum().item<double>(), 0);
  optimizer.zero_grad();
  EXPECT_FALSE(parts[0].tensor.grad().defined());
}

std::string error_of(base::ErrorCode code, const std::function<void()>& call) {
  try {
    call();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

TEST(AdamW, NamesWhatCannotBeUsed) {
  const auto with = [](auto&& change) {
    AdamWOptions options;
    change(options);
    return error_of(base::ErrorCode::kConfiguration, [&] { AdamW({}, options); });
  };
  EXPECT_THAT(with([](auto& o) { o.beta1 = 1; }),
              HasSubstr("beta1 must be from 0 to below 1, not 1"));
  EXPECT_THAT(with([](auto& o) { o.beta2 = -0.1; }), HasSubstr("beta2"));
  EXPECT_THAT(with([](auto& o) { o.eps = std::nan(""); }), HasSubstr("eps"));
  EXPECT_THAT(with([](auto& o) { o.weight_decay = -1; }), HasSubstr("weight_decay"));
  EXPECT_THAT(with([](auto& o) { o.lr = -1; }), HasSubstr("lr must be 0 or above"));
  EXPECT_THAT(error_of(base::ErrorCode::kConfiguration,
                       [] { AdamW(all_of(whole_parameters()), {}, {rule("heads.*", 0, 1)}); }),
              HasSubstr("\"heads.*\" matches no parameter"));
  EXPECT_THAT(error_of(base::ErrorCode::kInvalidArgument,
                       [] {
                         auto parts = all_of(whole_parameters());
                         parts[1].name = parts[0].name;
                         AdamW(parts, {});
                       }),
              HasSubstr("same name"));
}

TEST(AdamW, ABadStepChangesNothing) {
  const auto whole = whole_parameters();
  auto parts = all_of(whole);
  AdamW optimizer(parts, kOptions);
  const auto misuse = [&](const std::function<void()>& call) {
    const std::string message = error_of(base::ErrorCode::kMisuse, call);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_TRUE(parts[i].tensor.detach().equal(whole[i].reshape({-1})));
    }
    return message;
  };
  give_gradients(parts, whole, 0);
  EXPECT_THAT(misuse([&] { optimizer.step(0.1, std::nan("")); }),
              HasSubstr("gradient norm finite"));
  EXPECT_THAT(misuse([&] { optimizer.step(0.1, 0.0); }), HasSubstr("above 0"));
  EXPECT_THAT(misuse([&] { optimizer.step(std::numeric_limits<double>::infinity()); }),
              HasSubstr("lr must be"));
  parts[3].tensor.mutable_grad() = at::Tensor();
  at::Tensor wrong = torch::zeros({2}, torch::kDouble);
  parts[3].tensor.unsafeGetTensorImpl()->mutable_grad() = wrong;
  EXPECT_THAT(misuse([&] { optimizer.step(); }),
              HasSubstr("the gradient of \"scale\" (2 elements"));
}

}  // namespace
}  // namespace fullshard::optim
