#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>

#include "fullshard/optim/adamw.h"
#include "support/equality.h"

// O: parameter groups, and one switch between the strategies.

namespace fullshard::shard {
namespace {

using testing::Batch;
using testing::Problem;

constexpr std::int64_t kSteps = 4;
constexpr double kRate = 1e-2;
constexpr double kDecay = 0.1;
const Problem kTask = testing::gpt_problem(17, 6, 2);
const std::string kLeftOut = "blocks.1.down.bias";

// Decay on matrices only, a tenth of the rate on the head.
template <typename Named>
std::unique_ptr<torch::optim::Optimizer> grouped(const Named& named) {
  using Options = torch::optim::AdamWOptions;
  std::vector<at::Tensor> matrices, vectors, head;
  for (const auto& [name, dimensions, tensor] : named) {
    if (name == kLeftOut) continue;
    (name.starts_with("head.") ? head : dimensions >= 2 ? matrices : vectors).push_back(tensor);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<Options>(Options(kRate).weight_decay(kDecay)));
  groups.emplace_back(vectors, std::make_unique<Options>(Options(kRate).weight_decay(0)));
  groups.emplace_back(head, std::make_unique<Options>(Options(kRate / 10).weight_decay(kDecay)));
  return std::make_unique<torch::optim::AdamW>(groups, Options(kRate));
}

using Named = std::vector<std::tuple<std::string, std::size_t, at::Tensor>>;

StateDict train_groups_unsharded() {
  const auto model = kTask.build();
  Named named;
  for (const auto& item : model->named_parameters()) {
    named.emplace_back(item.key(), item.value().dim(), item.value());
  }
  const auto optimizer = grouped(named);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const Batch batch = kTask.batch(step);
    model->zero_grad();
    model->loss(batch.x, batch.y).backward();
    optimizer->step();
  }
  return testing::parameters_of(*model);
}

template <typename Step>
StateDict train_groups(comm::World& world, const std::function<Step(const ShardedModule&)>& make) {
  const auto model = kTask.build();
  const auto sharded = fully_shard(model, world.mesh());
  const Step update = make(sharded);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const Batch batch = testing::rows_of_rank(kTask.batch(step), world.rank(), world.size());
    sharded.zero_grad();
    model->loss(batch.x, batch.y).backward();
    update();
  }
  return sharded.full_state_dict();
}

using Update = std::function<void()>;

Update stock_update(const ShardedModule& sharded) {
  Named named;
  for (const auto& shard : sharded.named_parameters()) {
    named.emplace_back(shard.name, shard.global_shape.size(), shard.tensor);
  }
  return [optimizer = std::shared_ptr(grouped(named))] { optimizer->step(); };
}

Update fused_update(const ShardedModule& sharded) {
  std::vector<state::ShardedTensor> parameters = sharded.named_parameters();
  std::erase_if(parameters, [](const auto& shard) { return shard.name == kLeftOut; });
  const auto optimizer = std::make_shared<optim::AdamW>(
      parameters, optim::AdamWOptions{.lr = kRate, .weight_decay = kDecay},
      std::vector<optim::GroupRule>{{.pattern = "head.*", .lr_scale = 0.1},
                                    {.pattern = "*", .weight_decay = 0, .max_dimensions = 1}});
  return [optimizer] { optimizer->step(); };
}

TEST(Behaviours, O7_ParameterGroupsByName) {
  const StateDict expected = train_groups_unsharded();
  const at::Tensor still = testing::parameters_of(*kTask.build()).at(kLeftOut);
  for (const std::function<Update(const ShardedModule&)> make : {stock_update, fused_update}) {
    comm::run_as_threads(2, [&](comm::World& world) {
      const StateDict state = train_groups<Update>(world, make);
      testing::expect_match(state, expected, 1e-10);
      EXPECT_TRUE(at::equal(state.at(kLeftOut), still));
    });
  }
}

struct Mode {
  ShardingStrategy strategy;
  int replicate;
};

struct Bytes {
  std::int64_t gathered = 0;    // most parameters that were gathered at once
  std::int64_t parameters = 0;  // own share
  std::int64_t gradients = 0;
  std::int64_t state = 0;
};

// The same program for every mode.
Bytes train_in(comm::World& world, const Mode& mode, StateDict& state) {
  const auto model = kTask.build();
  const auto sharded = fully_shard(model, world.mesh({.replicate = mode.replicate}),
                                   {.sharding_strategy = mode.strategy});
  const auto optimizer = testing::stock_optimizer(testing::Optimizer::kAdam, sharded.parameters());
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const Batch batch = testing::rows_of_rank(kTask.batch(step), world.rank(), world.size());
    optimizer->zero_grad();
    model->loss(batch.x, batch.y).backward();
    optimizer->step();
  }
  state = sharded.full_state_dict();
  const Counters counters = sharded.counters();
  Bytes bytes{.gathered = counters.peak_unsharded_bytes,
              .parameters = counters.parameter_shard_bytes,
              .gradients = counters.gradient_bytes};
  for (const auto& [parameter, values] : optimizer->state()) {
    const auto& adam = static_cast<const torch::optim::AdamParamState&>(*values);
    bytes.state += static_cast<std::int64_t>(adam.exp_avg().nbytes() + adam.exp_avg_sq().nbytes());
  }
  return bytes;
}

void expect_interchange(comm::World& world, const Mode& mode, const StateDict& state) {
  const auto sharded = fully_shard(kTask.build(), world.mesh({.replicate = mode.replicate}),
                                   {.sharding_strategy = mode.strategy});
  sharded.load_state_dict(state);
  testing::expect_bitwise_equal(sharded.full_state_dict(), state);
}

TEST(Behaviours, O9_OneSwitchBetweenAllStrategies) {
  const std::vector<Mode> modes = {{ShardingStrategy::NO_SHARD, 1},
                                   {ShardingStrategy::SHARD_OPTIMIZER_ONLY, 1},
                                   {ShardingStrategy::SHARD_GRAD_OP, 1},
                                   {ShardingStrategy::FULL_SHARD, 1},
                                   {ShardingStrategy::HYBRID_SHARD, 2}};
  const testing::TrainOptions options{.steps = kSteps, .optimizer = testing::Optimizer::kAdam};
  const StateDict expected = testing::train_reference(kTask, options);
  comm::run_as_threads(4, [&](comm::World& world) {
    std::vector<Bytes> used;
    StateDict state;
    for (const Mode& mode : modes) {
      used.push_back(train_in(world, mode, state));
      testing::expect_match(state, expected, 1e-10);
      for (const Mode& other : modes) expect_interchange(world, other, state);
    }
    const Bytes &replicated = used[0], &optimizer_only = used[1], &grad_op = used[2],
                &full = used[3], &hybrid = used[4];
    // Parameters at once: everything for good, everything in a step, a few units at a time.
    EXPECT_EQ(optimizer_only.gathered, grad_op.gathered);
    EXPECT_EQ(optimizer_only.gathered, replicated.parameters);
    EXPECT_LT(full.gathered, grad_op.gathered);
    EXPECT_EQ(hybrid.gathered, full.gathered);
    for (const auto bytes : {&Bytes::parameters, &Bytes::gradients, &Bytes::state}) {
      EXPECT_LT(hybrid.*bytes, 0.7 * static_cast<double>(replicated.*bytes));
      EXPECT_LT(full.*bytes, 0.7 * static_cast<double>(hybrid.*bytes));
      EXPECT_EQ(full.*bytes, grad_op.*bytes);
      EXPECT_EQ(full.*bytes, optimizer_only.*bytes);
    }
  });
}

}  // namespace
}  // namespace fullshard::shard
