#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "fullshard/base/error.h"
#include "support/equality.h"
#include "support/networks.h"
#include "support/recomputed.h"

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

// With every strategy on ranks that share memory, and on ranks that send messages.
void expect_equal(const StackPasses& passes) {
  const testing::Passes all = [&](testing::Model& model, const Batch& batch, const Turn&) {
    passes(static_cast<Stack&>(model), batch);
  };
  testing::EqualityOptions options{.ranks = 3, .training = {.steps = 4}};
  testing::expect_equal_passes_for_strategies(kStack, all, options);
  SCOPED_TRACE("over Gloo");
  options.over_gloo = true;
  testing::expect_equal_passes(kStack, all, options);
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
  testing::run_both_ways(2, [&](comm::World& world) {
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

// A user's function that keeps a parameter for its backward, and reads another one there.
struct Scaled : torch::autograd::Function<Scaled> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return x * weight.diagonal();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0] * saved[1].diagonal(), at::diag((gradients[0] * saved[0]).sum(0))};
  }
};

TEST(AnyModel, FunctionsOfTheUserThatSaveParameters) {
  expect_equal([](Stack& model, const Batch& batch) {
    const at::Tensor h = Scaled::apply(batch.x, model.named_parameters()["layers.2.weight"]);
    (model.layer(0, h) - batch.y).pow(2).mean().backward();
  });
}

TEST(AnyModel, BackwardInsideBackward) {
  expect_equal([](Stack& model, const Batch& batch) {
    const testing::Body middle = [&](const at::Tensor& h) {
      return model.layer(2, model.layer(1, h));
    };
    const at::Tensor h = testing::Recomputed::apply(model.layer(0, batch.x), &middle);
    (model.layer(3, h) - batch.y).pow(2).mean().backward();
  });
  expect_equal([](Stack& model, const Batch& batch) {
    const testing::Body all = [&](const at::Tensor& h) { return model.layer(2, model.encode(h)); };
    const at::Tensor h = testing::Recomputed::apply(model.layer(0, batch.x), &all);
    (model.layer(3, testing::Recomputed::apply(h, &all)) - batch.y).pow(2).mean().backward();
  });
}

// Gradients of one unit in both, in either order.
TEST(AnyModel, BackwardInsideBackwardOfTheSameUnit) {
  expect_equal([](Stack& model, const Batch& batch) {
    const auto parameters = model.named_parameters();
    const at::Tensor weight = parameters["layers.1.weight"];
    const testing::Body inside = [&](const at::Tensor& h) {
      return at::linear(h, weight) + parameters["layers.3.bias"];
    };
    const at::Tensor h = testing::Recomputed::apply(model.layer(0, batch.x), &inside);
    (at::linear(h, parameters["layers.3.weight"]) + parameters["layers.1.bias"] - batch.y)
        .pow(2)
        .mean()
        .backward();
  });
}

TEST(AnyModel, HooksOnParameters) {
  expect_equal([](Stack& model, const Batch& batch) {
    const at::Tensor weight = model.named_parameters()["layers.1.weight"];
    const auto hook = weight.register_hook([](const at::Tensor& gradient) { return gradient * 3; });
    model.loss(batch.x, batch.y).backward();
    weight.remove_hook(hook);
  });
}

TEST(AnyModel, BackwardToSomeParametersOnly) {
  expect_equal([](Stack& model, const Batch& batch) {
    const auto parameters = model.named_parameters();
    const std::vector<at::Tensor> some = {parameters["layers.1.weight"],
                                          parameters["layers.3.bias"]};
    model.loss(batch.x, batch.y).backward({}, std::nullopt, false, some);
  });
}

TEST(AnyModel, AForwardThatThrowsIsForgotten) {
  expect_equal([](Stack& model, const Batch& batch) {
    try {
      model.layer(2, model.layer(1, batch.x)).reshape({-1, 7});
      ADD_FAILURE() << "5 columns were taken for 7";
    } catch (const c10::Error&) {
    }
    model.loss(batch.x, batch.y).backward();
  });
}

TEST(AnyModel, ABackwardThatThrowsBeforeItsFirstGradientIsForgotten) {
  expect_equal([](Stack& model, const Batch& batch) {
    const at::Tensor out = model.decode(model.encode(batch.x));
    out.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("hook"); });
    EXPECT_THROW(out.sum().backward(), std::exception);
    model.loss(batch.x, batch.y).backward();
  });
}

// Trains `ranks` ranks with `step`, and one unsharded with `expected`.
void expect_step_gives(const std::function<void(Stack&, const ShardedModule&, const Batch&)>& step,
                       const std::function<void(Stack&, const Batch&)>& expected) {
  const auto reference = std::static_pointer_cast<Stack>(kStack.build());
  const auto stock = testing::stock_optimizer(testing::Optimizer::kSgd, reference->parameters());
  expected(*reference, kStack.batch(0));
  stock->step();
  const auto on_rank = [&](comm::World& world) {
    const auto model = std::static_pointer_cast<Stack>(kStack.build());
    const auto sharded = fully_shard(model, world.mesh());
    const auto optimizer = testing::stock_optimizer(testing::Optimizer::kSgd, sharded.parameters());
    step(*model, sharded, testing::rows_of_rank(kStack.batch(0), world.rank(), world.size()));
    optimizer->step();
    testing::expect_match(sharded.full_state_dict(), testing::parameters_of(*reference), 1e-10);
  };
  testing::run_both_ways(2, on_rank);
  testing::run_on_hosts(2, 2, on_rank);
}

// The hook of `of` throws.
void backward_that_throws(const at::Tensor& of, const at::Tensor& loss) {
  of.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("hook"); });
  EXPECT_THROW(loss.backward(), std::exception);
}

TEST(AnyModel, ABackwardThatThrowsTakesNothingFromThePassesBeforeIt) {
  expect_step_gives(
      [](Stack& model, const ShardedModule& sharded, const Batch& rows) {
        sharded.set_requires_gradient_sync(false);
        model.loss(rows.x, rows.y).backward();
        const at::Tensor out = model.decode(model.encode(rows.x));
        backward_that_throws(out, out.sum());
        sharded.set_requires_gradient_sync(true);
        model.loss(rows.y, rows.x).backward();
      },
      [](Stack& model, const Batch& batch) {
        model.loss(batch.x, batch.y).backward();
        model.loss(batch.y, batch.x).backward();
      });
}

// Then nobody can tell what of the sum was the failed pass's.
TEST(AnyModel, ABackwardThatThrowsAfterItsFirstGradientsSpoilsThoseOfThePassesBeforeIt) {
  for (const bool by_handle : {true, false}) {
    expect_step_gives(
        [&](Stack& model, const ShardedModule& sharded, const Batch& rows) {
          sharded.set_requires_gradient_sync(false);
          model.loss(rows.x, rows.y).backward();
          const at::Tensor loss = model.loss(rows.x, rows.y);
          backward_that_throws(model.cached, loss);
          for (int again = 0; again < 2; ++again) {
            try {
              model.loss(rows.x, rows.y).backward();
              ADD_FAILURE() << "no error";
            } catch (const base::Error& error) {
              EXPECT_EQ(error.code(), base::ErrorCode::kMisuse);
              EXPECT_THAT(error.what(), ::testing::HasSubstr("zero_grad() of the sharded model"));
            }
          }
          if (by_handle) {
            sharded.zero_grad();
          } else {
            model.zero_grad();
          }
          sharded.set_requires_gradient_sync(true);
          model.loss(rows.y, rows.x).backward();
        },
        [](Stack& model, const Batch& batch) { model.loss(batch.y, batch.x).backward(); });
  }
}

// A rank by itself has what unsharded training has, which is all that had come.
TEST(AnyModel, AloneABackwardThatThrowsLeavesWhatHadCome) {
  const auto step = [](Stack& model, const Batch& batch) {
    model.loss(batch.x, batch.y).backward();
    const at::Tensor loss = model.loss(batch.y, batch.x);
    backward_that_throws(model.cached, loss);
    model.loss(batch.x, batch.x.mean(1, true)).backward();
  };
  const Batch batch = kStack.batch(0);
  const auto plain = std::static_pointer_cast<Stack>(kStack.build());
  step(*plain, batch);
  step(*plain, batch);
  comm::World world = comm::single_rank();
  for (const bool sync : {true, false}) {
    const auto model = std::static_pointer_cast<Stack>(kStack.build());
    const auto sharded = fully_shard(model, world.mesh());
    sharded.set_requires_gradient_sync(sync);
    step(*model, batch);
    sharded.set_requires_gradient_sync(true);
    step(*model, batch);
    testing::expect_gradients_of(sharded, *plain);
  }
}

// The gradients that are on their way are not touched; those of earlier passes would be.
TEST(AnyModel, ZeroGradInsideABackwardLeavesThatPassAlone) {
  expect_step_gives(
      [](Stack& model, const ShardedModule& sharded, const Batch& rows) {
        const at::Tensor loss = model.loss(rows.x, rows.y);
        model.cached.register_hook([&](const at::Tensor&) { sharded.zero_grad(); });
        sharded.set_requires_gradient_sync(false);
        loss.backward();
        sharded.set_requires_gradient_sync(true);
        model.loss(rows.y, rows.x).backward();
      },
      [](Stack& model, const Batch& batch) {
        model.loss(batch.x, batch.y).backward();
        model.loss(batch.y, batch.x).backward();
      });
}

struct SparseTable : testing::Model {
  SparseTable() : table(torch::nn::EmbeddingOptions(9, 4).sparse(true)), head(4, 3) {
    register_module("table", table);
    register_module("head", head);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    const at::Tensor tokens = x.mul(3).abs().to(at::kLong).clamp_max(8);
    return (head(torch::tanh(table(tokens).sum(1))) - y).pow(2).mean();
  }
  torch::nn::Embedding table;
  torch::nn::Linear head;
};

TEST(AnyModel, SparseGradients) {
  for (const bool over_gloo : {false, true}) {
    testing::expect_equal_training(testing::problem_of<SparseTable>(4, 3),
                                   {.ranks = 3,
                                    .training = {.optimizer = testing::Optimizer::kSgd},
                                    .sharding = {.auto_wrap_policy = wrap_named({"table", "head"})},
                                    .over_gloo = over_gloo});
  }
}

// Two sharded models in one backward pass: each reduces its own gradients.
template <typename Shard>
std::vector<StateDict> train_pair(const Shard& shard, int rank, int size) {
  const auto maker = std::static_pointer_cast<Stack>(kStack.build());
  const auto judge = std::static_pointer_cast<Stack>(kStack.build());
  const auto [of_maker, of_judge] = shard(maker, judge);
  for (std::int64_t step = 0; step < 4; ++step) {
    const Batch rows = testing::rows_of_rank(kStack.batch(step), rank, size);
    of_maker.optimizer->zero_grad();
    judge->decode(maker->encode(rows.x)).pow(2).mean().backward();
    of_maker.optimizer->step();
    of_judge.optimizer->zero_grad();
    const at::Tensor made = maker->encode(rows.x).detach();
    (judge->decode(rows.y).pow(2).mean() - judge->decode(made).abs().mean()).backward();
    of_judge.optimizer->step();
  }
  return {of_maker.state(), of_judge.state()};
}

struct Trained {
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::function<StateDict()> state;
};

Trained plain_one(const std::shared_ptr<Stack>& model) {
  return {testing::stock_optimizer(testing::Optimizer::kAdam, model->parameters()),
          [model] { return testing::parameters_of(*model); }};
}

Trained sharded_one(const std::shared_ptr<Stack>& model, comm::World& world) {
  const auto sharded = fully_shard(std::shared_ptr<torch::nn::Module>(model), world.mesh());
  return {testing::stock_optimizer(testing::Optimizer::kAdam, sharded.parameters()),
          [sharded] { return sharded.full_state_dict(); }};
}

TEST(AnyModel, TwoModelsInOneBackward) {
  const auto expected =
      train_pair([](const auto& maker,
                    const auto& judge) { return std::pair(plain_one(maker), plain_one(judge)); },
                 0, 1);
  testing::run_both_ways(2, [&](comm::World& world) {
    const auto actual = train_pair(
        [&](const auto& maker, const auto& judge) {
          return std::pair(sharded_one(maker, world), sharded_one(judge, world));
        },
        world.rank(), world.size());
    testing::expect_match(actual[0], expected[0], 1e-10);
    testing::expect_match(actual[1], expected[1], 1e-10);
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
  for (const bool over_gloo : {false, true}) {
    testing::expect_equal_passes_for_strategies(task, passes,
                                                {.training = {.steps = 5}, .over_gloo = over_gloo});
  }
}

}  // namespace
}  // namespace fullshard::shard
