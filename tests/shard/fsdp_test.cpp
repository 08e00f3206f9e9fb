#include <fullshard/fullshard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/training.h"

// A sharded model as one object, by the names of the public header alone.

namespace fullshard {
namespace {

struct Net : torch::nn::Module {
  Net() : first(6, 10), second(10, 3) {
    register_module("first", first);
    register_module("second", second);
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
  at::Tensor scaled(const at::Tensor& x, double by) { return forward(x) * by; }
  torch::nn::Linear first, second;
};

std::shared_ptr<Net> build() {
  struct Holder : testing::Model {
    at::Tensor loss(const at::Tensor& x, const at::Tensor&) override { return x; }
    std::shared_ptr<Net> net = std::make_shared<Net>();
  };
  const auto holder = testing::build_seeded([] { return std::make_shared<Holder>(); });
  return static_cast<Holder&>(*holder).net;
}

const testing::Problem kData = testing::mlp_problem({6, 3});

at::Tensor mean_square(const at::Tensor& out, const at::Tensor& y) {
  return (out - y).pow(2).mean();
}

StateDict train_plain() {
  const auto model = build();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 4; ++step) {
    const testing::Batch batch = kData.batch(step);
    optimizer.zero_grad();
    mean_square(model->forward(batch.x), batch.y).backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), 0.5);
    optimizer.step();
  }
  return testing::parameters_of(*model);
}

TEST(FullyShardedDataParallel, IsCalledAndTrainedLikeTheModelInIt) {
  const StateDict expected = train_plain();
  for (const int ranks : {1, 2, 3}) {
    comm::run_as_threads(ranks, [&](World& world) {
      FullyShardedDataParallel<Net> model(build(), world.mesh(),
                                          {.auto_wrap_policy = wrap_named({"first", "second"})});
      torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
      for (int step = 0; step < 4; ++step) {
        const auto batch = testing::rows_of_rank(kData.batch(step), world.rank(), world.size());
        optimizer.zero_grad();
        mean_square(model(batch.x), batch.y).backward();
        model.clip_grad_norm_(0.5);
        optimizer.step();
      }
      testing::expect_match(model.full_state_dict(), expected, 1e-10);
      EXPECT_EQ(model.counters().units.size(), 2U);
    });
  }
}

TEST(FullyShardedDataParallel, ArrowReachesTheModel) {
  comm::run_as_threads(2, [](World& world) {
    FullyShardedDataParallel<Net> model(build(), world.mesh());
    const at::NoGradGuard no_grad;
    const at::Tensor x = kData.batch(0).x;
    const at::Tensor out = model(x);
    EXPECT_TRUE(at::equal(model->scaled(x, 2), out * 2));
    EXPECT_TRUE(at::equal(out, build()->forward(x)));
    EXPECT_EQ(model->first->options.out_features(), 10);
    EXPECT_EQ(model.module().get(), model.operator->());
    model->eval();
    EXPECT_FALSE(model.module()->is_training());
  });
}

TEST(FullyShardedDataParallel, TheHandleOfTheModelIsShared) {
  comm::run_as_threads(2, [](World& world) {
    FullyShardedDataParallel<Net> model(build(), world.mesh());
    const ShardedModule handle = model;
    model(kData.batch(0).x).sum().backward();
    for (const at::Tensor& shard : handle.parameters()) {
      EXPECT_TRUE(shard.numel() == 0 || shard.grad().defined());
    }
    handle.zero_grad();
    for (const at::Tensor& shard : model.parameters()) EXPECT_FALSE(shard.grad().defined());
  });
}

}  // namespace
}  // namespace fullshard
