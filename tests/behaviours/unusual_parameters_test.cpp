#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fullshard/base/error.h"
#include "fullshard/optim/adamw.h"
#include "fullshard/optim/state_bytes.h"
#include "support/equality.h"
#include "support/networks.h"
#include "support/saved.h"
#include "support/temporary_folder.h"

// E: integer, frozen, thawing, empty and oddly laid out parameters.

namespace fullshard::shard {
namespace {

using testing::Batch;
using testing::Problem;
using testing::TrainOptions;

at::Tensor ramp(at::IntArrayRef shape) {
  return at::linspace(-0.7, 0.9, c10::multiply_integers(shape), at::kDouble).reshape(shape);
}

// A quantised base weight with its scale, index and mask, and a trainable low-rank adapter.
struct Quantised : torch::nn::Module {
  Quantised() {
    const auto frozen = [&](const char* name, const at::Tensor& value) {
      return register_parameter(name, value, /*requires_grad=*/false);
    };
    packed = frozen("packed", at::arange(-18, 18, at::kChar).reshape({6, 6}) * 7);
    scale = frozen("scale", at::full({}, 0.01, at::kDouble));
    order = frozen("order", at::arange(5, -1, -1, at::kLong));
    mask = frozen("mask", at::arange(6).remainder(4) != 0);
    down = register_parameter("down", ramp({2, 6}));
    up = register_parameter("up", ramp({6, 2}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor base = at::linear(x, packed.to(at::kDouble) * scale);
    const at::Tensor kept = base.index_select(1, order).masked_fill(mask, 0);
    return torch::tanh(kept + at::linear(at::linear(x, down), up));
  }
  at::Tensor packed, scale, order, mask, down, up;
};

struct QuantisedNet : testing::Model {
  QuantisedNet() {
    for (int i = 0; i < 2; ++i) layers->push_back(std::make_shared<Quantised>());
    register_module("layers", layers);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    at::Tensor h = x;
    for (const auto& layer : *layers) h = layer->as<Quantised>()->forward(h);
    return (h - y).pow(2).mean();
  }
  torch::nn::ModuleList layers;
};

TEST(Behaviours, E6_IntegerParametersWithATrainableAdapter) {
  Problem task = testing::mlp_problem({6, 6});
  task.build = [] { return std::make_shared<QuantisedNet>(); };
  const TrainOptions options{.steps = 3};
  const StateDict before = testing::parameters_of(*task.build());
  const StateDict expected = testing::train_reference(task, options);
  const testing::TemporaryFolder folder;
  const std::string file = folder.path("e6.pt");
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    testing::train_steps(*model, sharded, world, task, options);
    testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
    testing::save_whole(sharded, world.rank(), file);
  });
  const StateDict saved = testing::parameters_of(*testing::load_plain(task, file));
  testing::expect_match(saved, expected, 1e-10);
  for (const auto& [name, value] : before) {
    if (name.ends_with("down") || name.ends_with("up")) continue;
    EXPECT_EQ(saved.at(name).scalar_type(), value.scalar_type()) << name;
    EXPECT_TRUE(at::equal(saved.at(name), value)) << name;
  }
  comm::run_as_threads(3, [&](comm::World& world) {
    const auto sharded = fully_shard(task.build(), world.mesh());
    sharded.load_state_dict(saved);
    testing::expect_bitwise_equal(sharded.full_state_dict(), saved);
  });
}

void freeze(const torch::nn::Module& model, const std::string& prefix, bool frozen) {
  for (const auto& item : model.named_parameters()) {
    if (item.key().starts_with(prefix)) item.value().set_requires_grad(!frozen);
  }
}

// Adam's moments by parameter name; empty where Adam has no state.
StateDict moments(const torch::optim::Optimizer& optimizer, const std::string& name,
                  const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return {};
  const auto& state = static_cast<const torch::optim::AdamParamState&>(*found->second);
  return {{name + ".step", at::scalar_tensor(state.step())},
          {name + ".mean", state.exp_avg().flatten()},
          {name + ".square", state.exp_avg_sq().flatten()}};
}

struct Snapshot {
  StateDict parameters;
  std::map<std::string, StateDict> moments;
};

constexpr std::int64_t kSpan = 3;

bool frozen_at(std::int64_t step) { return step / kSpan != 1; }

std::vector<Snapshot> thaw_and_freeze_unsharded(const Problem& task) {
  const auto model = task.build();
  const auto optimizer = testing::stock_optimizer(testing::Optimizer::kAdam, model->parameters());
  std::vector<Snapshot> out;
  for (std::int64_t step = 0; step < 3 * kSpan; ++step) {
    freeze(*model, "layers.1.", frozen_at(step));
    const Batch batch = task.batch(step);
    optimizer->zero_grad();
    model->loss(batch.x, batch.y).backward();
    optimizer->step();
    if ((step + 1) % kSpan != 0) continue;
    out.push_back({testing::parameters_of(*model), {}});
    for (const auto& item : model->named_parameters()) {
      StateDict& copies = out.back().moments[item.key()];
      copies = moments(*optimizer, item.key(), item.value());
      for (auto& [name, value] : copies) value = value.clone();
    }
  }
  return out;
}

void expect_snapshot(const ShardedModule& sharded, const torch::optim::Optimizer& optimizer,
                     const Snapshot& expected) {
  testing::expect_match(sharded.full_state_dict(), expected.parameters, 1e-10);
  for (const auto& shard : sharded.named_parameters()) {
    StateDict whole = expected.moments.at(shard.name);
    for (auto& [name, value] : whole) {
      if (value.dim() == 1) value = value.narrow(0, shard.begin, shard.end - shard.begin);
    }
    const StateDict mine = moments(optimizer, shard.name, shard.tensor);
    EXPECT_EQ(mine.size(), whole.size()) << shard.name;
    testing::expect_match(mine, whole, 1e-10);
  }
}

TEST(Behaviours, E9_UnfreezingAndFreezingInTheMiddleOfARun) {
  const Problem task = testing::mlp_problem({5, 7, 6, 3});
  const std::vector<Snapshot> expected = thaw_and_freeze_unsharded(task);
  for (const auto& policy : {automatic(), root_only()}) {
    testing::run_both_ways(2, [&](comm::World& world) {
      const auto model = task.build();
      freeze(*model, "layers.1.", true);
      const auto sharded = fully_shard(model, world.mesh(), {.auto_wrap_policy = policy});
      const auto optimizer =
          testing::stock_optimizer(testing::Optimizer::kAdam, sharded.parameters());
      for (std::int64_t step = 0; step < 3 * kSpan; ++step) {
        freeze(*model, "layers.1.", frozen_at(step));
        const Batch batch = testing::rows_of_rank(task.batch(step), world.rank(), world.size());
        optimizer->zero_grad();
        model->loss(batch.x, batch.y).backward();
        optimizer->step();
        if ((step + 1) % kSpan == 0) {
          expect_snapshot(sharded, *optimizer, expected[static_cast<std::size_t>(step / kSpan)]);
        }
      }
    });
  }
}

// Adapters on large frozen weights, all in one unit.
TEST(Behaviours, E9_GradientAndOptimizerMemoryOnlyForTheTrainable) {
  Problem task = testing::mlp_problem({64, 64, 64, 64});
  task.build = [build = task.build] {
    const auto model = build();
    for (const auto& item : model->named_parameters()) {
      item.value().set_requires_grad(item.key().ends_with("bias"));
    }
    return model;
  };
  const std::int64_t trainable = 3 * 64 * static_cast<std::int64_t>(sizeof(double));
  constexpr std::int64_t kCounts = sizeof(float);
  const StateDict expected = testing::train_reference(task, {.steps = 3});
  const auto train = [&](comm::World& world, const WrapPolicy& policy, const auto& make) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh(), {.auto_wrap_policy = policy});
    const auto optimizer = make(sharded);
    for (std::int64_t step = 0; step < 3; ++step) {
      const Batch batch = testing::rows_of_rank(task.batch(step), world.rank(), world.size());
      optimizer->zero_grad();
      model->loss(batch.x, batch.y).backward();
      optimizer->step();
    }
    testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
    EXPECT_EQ(sharded.counters().gradient_bytes, trainable / 2);
    EXPECT_LE(sharded.counters().peak_unreduced_gradient_bytes, trainable);
    const std::int64_t state = optim::state_bytes(*optimizer);
    EXPECT_GE(state, 2 * trainable / 2);                // two moments
    EXPECT_LE(state, 2 * trainable / 2 + 3 * kCounts);  // and the steps of three parameters
  };
  testing::run_both_ways(2, [&](comm::World& world) {
    for (const auto& policy : {automatic(), root_only()}) {
      train(world, policy, [](const ShardedModule& sharded) {
        return testing::stock_optimizer(testing::Optimizer::kAdamW, sharded.parameters());
      });
      train(world, policy, [](const ShardedModule& sharded) {
        return std::make_unique<optim::AdamW>(sharded.named_parameters(),
                                              optim::AdamWOptions{.lr = 1e-2, .weight_decay = 0.1},
                                              std::vector<optim::GroupRule>{});
      });
    }
  });
}

struct Odd : testing::Model {
  Odd() {
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{
             {}, {0}, {1}, {3, 0, 2}, {1, 1, 1}, {7}, {0, 4}, {3, 5, 1}, {4, 4}}) {
      const std::string name = "p" + std::to_string(parameters().size());
      values.push_back(register_parameter(name, ramp(shape)));
    }
    nothing = register_module("nothing", std::make_shared<Nothing>());
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    at::Tensor sum = nothing->empty.sum();
    for (const at::Tensor& value : values) sum = sum + (value * value).sum() + value.cos().sum();
    const at::Tensor h = at::mm(x, at::cat({values[8], nothing->empty}, 0));
    return ((h - y) * values[0]).pow(2).mean() + 0.1 * sum;
  }

  // A unit of which nothing is left after flattening.
  struct Nothing : torch::nn::Module {
    Nothing() { empty = register_parameter("empty", at::empty({0, 4}, at::kDouble)); }
    at::Tensor empty;
  };
  std::vector<at::Tensor> values;
  std::shared_ptr<Nothing> nothing;
};

TEST(Behaviours, E4_EmptyScalarAndOddSizedParametersInOneModel) {
  const Problem task = testing::problem_of<Odd>(4, 4);
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto strategy : {ShardingStrategy::FULL_SHARD, ShardingStrategy::NO_SHARD}) {
      testing::expect_equal_training(
          task, {.ranks = ranks,
                 .training = {.steps = 3, .optimizer = testing::Optimizer::kAdam},
                 .sharding = {.auto_wrap_policy = wrap_modules<Odd::Nothing>(),
                              .sharding_strategy = strategy}});
    }
  }
}

// One layer three times in a list, as models do that share weights over depth, and once by itself.
struct Repeated : testing::Model {
  Repeated() : layer(4, 4), other(4, 4) {
    for (int i = 0; i < 3; ++i) layers->push_back(layer);
    layers->push_back(other);
    register_module("layers", layers);
    register_module("alias", layer);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    at::Tensor h = x;
    for (const auto& member : *layers) {
      h = torch::tanh(member->as<torch::nn::Linear>()->forward(h));
    }
    return (layer(h) - y).pow(2).mean();
  }
  torch::nn::Linear layer, other;
  torch::nn::ModuleList layers;
};

const Problem kRepeated = testing::problem_of<Repeated>(4, 4);

TEST(Behaviours, E1_AModuleUnderSeveralNames) {
  const Problem& task = kRepeated;
  testing::expect_equal_training(task, {.ranks = 3});
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    EXPECT_EQ(sharded.parameter_count(), 2 * (4 * 4 + 4));
    EXPECT_EQ(sharded.counters().units.size(), 2U);
    const StateDict state = sharded.full_state_dict();
    EXPECT_TRUE(state.at("layers.2.weight").is_same(state.at("alias.weight")));
  });
}

// Sharded, each would get memory of its own.
TEST(Behaviours, E1_TensorsTiedByTheirMemoryAreAnError) {
  comm::World world = comm::single_rank();
  for (const std::int64_t rows : {4, 3}) {
    const auto model = kRepeated.build();
    auto& net = static_cast<Repeated&>(*model);
    net.other->weight.set_data(net.layer->weight.detach().narrow(0, 4 - rows, rows));
    try {
      fully_shard(model, world.mesh());
      ADD_FAILURE() << "no error";
    } catch (const base::Error& error) {
      EXPECT_EQ(error.code(), base::ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("'layers.0.weight'"),
                                                 ::testing::HasSubstr("'layers.3.weight'"),
                                                 ::testing::HasSubstr("one memory")));
    }
    EXPECT_NO_THROW(net.layer->weight.sum().item());  // as it was
  }
}

// Cut from one matrix by columns, they share no element though their memory is interleaved.
TEST(Behaviours, E1_ColumnsOfOneMatrixAreNotTied) {
  Problem task = kRepeated;
  task.build = [] {
    const auto model = kRepeated.build();
    auto& net = static_cast<Repeated&>(*model);
    const at::NoGradGuard no_grad;
    const at::Tensor both = at::cat({net.layer->weight, net.other->weight}, 1);
    net.layer->weight.set_data(both.narrow(1, 0, 4));
    net.other->weight.set_data(both.narrow(1, 4, 4));
    return model;
  };
  testing::expect_equal_training(task, {.ranks = 2});
}

// As where all parameters of a model are cut from one run of memory.
TEST(Behaviours, E1_TensorsSideBySideInOneMemoryAreNotTied) {
  Problem task = kRepeated;
  task.build = [] {
    const auto model = kRepeated.build();
    const at::NoGradGuard no_grad;
    const auto parameters = testing::unique_parameters(*model);
    std::int64_t count = 0;
    for (const at::Tensor& parameter : parameters) count += parameter.numel();
    const at::Tensor flat = at::empty({count}, at::kDouble);
    std::int64_t begin = 0;
    for (at::Tensor parameter : parameters) {
      const at::Tensor part = flat.narrow(0, begin, parameter.numel()).view(parameter.sizes());
      part.copy_(parameter);
      parameter.set_data(part);
      begin += parameter.numel();
    }
    return model;
  };
  testing::expect_equal_training(task, {.ranks = 2});
}

struct ChannelsLast : testing::Model {
  ChannelsLast() : first(options(2, 6)), second(options(6, 3)) {
    register_module("first", first);
    register_module("second", second);
    const at::NoGradGuard no_grad;
    for (at::Tensor& weight : {std::ref(first->weight), std::ref(second->weight)}) {
      weight.set_data(weight.contiguous(at::MemoryFormat::ChannelsLast));
    }
  }
  static torch::nn::Conv2dOptions options(std::int64_t in, std::int64_t out) {
    return torch::nn::Conv2dOptions(in, out, 3).padding(1);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    const at::Tensor image =
        x.reshape({x.size(0), 2, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor h = second(torch::relu(first(image)));
    return (h.flatten(1) - y).pow(2).mean();
  }
  torch::nn::Conv2d first, second;
};

TEST(Behaviours, E4_ChannelsLastWeights) {
  const Problem task = testing::problem_of<ChannelsLast>(2 * 4 * 4, 3 * 4 * 4);
  ASSERT_FALSE(task.build()->named_parameters()["first.weight"].is_contiguous());
  testing::expect_equal_training(
      task, {.ranks = 3, .sharding = {.auto_wrap_policy = wrap_named({"first", "second"})}});
}

}  // namespace
}  // namespace fullshard::shard
