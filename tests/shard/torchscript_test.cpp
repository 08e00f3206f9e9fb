#include <gtest/gtest.h>
#include <torch/script.h>

#include <filesystem>
#include <sstream>

#include "support/training.h"

// TorchScript modules are sharded like C++ ones. These are compiled here; tests/torchscript trains
// one that Python exported.

namespace fullshard::shard {
namespace {

// Two layers in submodules of their own and a tied weight, seeded.
torch::jit::Module make_script() {
  const auto random = at::make_generator<at::CPUGeneratorImpl>(5);
  const auto weight = [&](std::int64_t rows, std::int64_t columns) {
    return at::randn({rows, columns}, random, at::kDouble).div_(3).set_requires_grad(true);
  };
  torch::jit::Module model("Model");
  for (const char* name : {"first", "second"}) {
    torch::jit::Module layer("Layer");
    layer.register_parameter("weight", weight(6, 6), false);
    layer.register_parameter("bias", weight(1, 6), false);
    layer.define(
        "def forward(self, x):\n  return torch.tanh(torch.matmul(x, self.weight) + self.bias)\n");
    model.register_module(name, layer);
  }
  model.register_parameter("scale", weight(1, 6), false);
  model.register_buffer("offset", at::ones({6}, at::kDouble));
  model.define(
      "def forward(self, x):\n"
      "  return self.second.forward(self.first.forward(x)) * self.scale + self.offset\n");
  return model;
}

at::Tensor loss_of(torch::jit::Module& model, const testing::Batch& batch) {
  return (model.forward({batch.x}).toTensor() - batch.y).pow(2).mean();
}

std::vector<at::Tensor> parameters_of(const torch::jit::Module& model) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& parameter : model.parameters()) out.push_back(parameter);
  return out;
}

const testing::Problem kTask = testing::mlp_problem({6, 6});
constexpr int kSteps = 6;  // past the profiling executor's first runs

StateDict reference() {
  torch::jit::Module model = make_script();
  const auto optimizer = testing::stock_optimizer(testing::Optimizer::kAdamW, parameters_of(model));
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    loss_of(model, kTask.batch(step)).backward();
    optimizer->step();
  }
  StateDict state;
  for (const auto& item : model.named_parameters()) state[item.name] = item.value.detach().clone();
  return state;
}

class TorchScript : public ::testing::TestWithParam<int> {};

TEST_P(TorchScript, TrainsEqualToUnsharded) {
  const StateDict expected = reference();
  comm::run_as_threads(GetParam(), [&](comm::World& world) {
    torch::jit::Module model = make_script();
    const auto sharded =
        fully_shard(model, world.mesh(), {.auto_wrap_policy = wrap_named({"first", "second"})});
    const auto optimizer =
        testing::stock_optimizer(testing::Optimizer::kAdamW, sharded.parameters());
    for (int step = 0; step < kSteps; ++step) {
      optimizer->zero_grad();
      loss_of(model, testing::rows_of_rank(kTask.batch(step), world.rank(), world.size()))
          .backward();
      optimizer->step();
    }
    EXPECT_EQ(sharded.counters().units.size(), 3U);
    testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
  });
}

TEST(TorchScriptClass, RulesAndUnitsByClass) {
  comm::World world = comm::single_rank();
  const torch::jit::Module model = make_script();
  const auto sharded = fully_shard(
      model, world.mesh(),
      {.auto_wrap_policy = wrap_classes({"Layer"}),
       .rules = {
           {.pattern = "*weight", .module_class = "Layer", .strategy = ShardingStrategy::NO_SHARD},
           {.module_class = "Model", .strategy = ShardingStrategy::SHARD_GRAD_OP}}});
  const std::string table = sharded.describe();
  EXPECT_NE(table.find("  second.weight  [6, 6]  all ranks\n"), std::string::npos) << table;
  EXPECT_NE(table.find("(root)  SHARD_GRAD_OP"), std::string::npos) << table;
  EXPECT_NE(table.find("  second.bias  [1, 6]  0:[0,6)\n"), std::string::npos) << table;
}

TEST_P(TorchScript, SavesWholeValues) {
  const StateDict expected = [] {
    StateDict state;
    const torch::jit::Module model = make_script();
    for (const auto& item : model.named_parameters()) state[item.name] = item.value.detach();
    return state;
  }();
  std::stringstream file;
  comm::run_as_threads(GetParam(), [&](comm::World& world) {
    torch::jit::Module model = make_script();
    const auto sharded = fully_shard(model, world.mesh());
    const auto scope = sharded.unsharded();
    if (world.rank() == 0) model.save(file);
  });
  const torch::jit::Module loaded = torch::jit::load(file);
  StateDict state;
  for (const auto& item : loaded.named_parameters()) state[item.name] = item.value.detach();
  testing::expect_bitwise_equal(state, expected);
}

TEST_P(TorchScript, ComputesInAnotherTypeThanItIsSavedIn) {
  const StateDict expected = reference();
  comm::run_as_threads(GetParam(), [&](comm::World& world) {
    torch::jit::Module model = make_script();
    const auto sharded =
        fully_shard(model, world.mesh(),
                    {.mixed_precision = {.param_dtype = at::kFloat, .buffer_dtype = at::kFloat}});
    const auto optimizer =
        testing::stock_optimizer(testing::Optimizer::kAdamW, sharded.parameters());
    for (int step = 0; step < kSteps; ++step) {
      optimizer->zero_grad();
      auto rows = testing::rows_of_rank(kTask.batch(step), world.rank(), world.size());
      rows.x = rows.x.to(at::kFloat);
      loss_of(model, rows).backward();
      optimizer->step();
    }
    EXPECT_EQ(parameters_of(model).front().scalar_type(), at::kFloat);
    const auto whole = sharded.unsharded();
    for (const auto& item : model.named_parameters()) {
      EXPECT_EQ(item.value.scalar_type(), at::kDouble);
      EXPECT_TRUE(at::allclose(item.value, expected.at(item.name), 1e-3, 1e-3)) << item.name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, TorchScript, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace fullshard::shard
