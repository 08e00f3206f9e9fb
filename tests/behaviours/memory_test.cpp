#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "support/networks.h"
#include "support/training.h"

// A: memory.

namespace fullshard::shard {
namespace {

using testing::rows_of_rank;

TEST(Behaviours, A1_FrozenUnitsAreFreedInBackward) {
  auto task = testing::mlp_problem({64, 64, 64, 64, 64, 64, 64});
  task.build = [build = task.build] {
    const auto model = build();
    for (const auto& item : model->named_parameters()) {
      item.value().set_requires_grad(item.key().starts_with("layers.0."));
    }
    return model;
  };
  const testing::TrainOptions options{.steps = 3, .optimizer = testing::Optimizer::kSgd};
  const StateDict before = testing::parameters_of(*task.build());
  const StateDict expected = testing::train_reference(task, options);
  const auto train = [&](comm::World& world, int prefetch) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh(),
                                     {.auto_wrap_policy = wrap_modules<torch::nn::LinearImpl>(),
                                      .forward_prefetch = prefetch,
                                      .backward_prefetch = prefetch});
    const auto optimizer = testing::stock_optimizer(options.optimizer, sharded.parameters());
    const std::int64_t unit_bytes = sharded.counters().units.front().bytes;
    for (std::int64_t step = 0; step < options.steps; ++step) {  // traced, then planned
      const auto batch = rows_of_rank(task.batch(step), world.rank(), world.size());
      optimizer->zero_grad();
      const at::Tensor loss = model->loss(batch.x, batch.y);
      sharded.reset_peak();
      loss.backward();
      EXPECT_GT(sharded.counters().peak_unsharded_bytes, 0);
      EXPECT_LE(sharded.counters().peak_unsharded_bytes, (prefetch > 0 ? 3 : 2) * unit_bytes);
      EXPECT_EQ(sharded.counters().live_unsharded_bytes, 0);
      optimizer->step();
    }
    const StateDict after = sharded.full_state_dict();
    testing::expect_match(after, expected, 1e-10);
    for (const auto& [name, value] : before) {
      if (!name.starts_with("layers.0.")) EXPECT_TRUE(at::equal(after.at(name), value)) << name;
    }
  };
  testing::run_both_ways(2, [&](comm::World& world) {
    train(world, 0);
    train(world, 1);
  });
}

// Documented: without gradients the unit touched last stays, and the `prefetch` units that followed
// it the last time.
void expect_one_unit_left(comm::World& world, std::optional<int> prefetch) {
  const auto task = testing::gpt_problem(64, 32, 2);
  const auto model = task.build();
  const auto sharded = fully_shard(model, world.mesh(), {.forward_prefetch = prefetch});
  const bool is_ahead = prefetch.value_or(world.group().shares_memory() ? 0 : 1) > 0;
  const auto batch = task.batch(0);
  const at::NoGradGuard no_grad;
  const at::Tensor block_input = at::randn({2, 8, 32}, at::kDouble);
  const auto bytes_of = [&](std::string_view name) {
    for (const UnitCounters& unit : sharded.counters().units) {
      if (unit.name == name) return unit.bytes;
    }
    return std::int64_t{-1};
  };
  for (int i = 0; i < 10; ++i) {
    testing::run_block(*model, 0, block_input);
    EXPECT_EQ(sharded.counters().live_unsharded_bytes,
              bytes_of("blocks.0") + (is_ahead && i > 0 ? bytes_of("blocks.1") : 0));
    model->loss(batch.x, batch.y);
    EXPECT_EQ(sharded.counters().live_unsharded_bytes,
              bytes_of("(root)") + (is_ahead ? bytes_of("blocks.0") : 0));
  }
  sharded.release();
  EXPECT_EQ(sharded.counters().live_unsharded_bytes, 0);
}

TEST(Behaviours, A3_ForwardOnlyCallsLeaveOneUnitAtMost) {
  testing::run_both_ways(2, [](comm::World& world) {
    expect_one_unit_left(world, std::nullopt);
    expect_one_unit_left(world, 0);
  });
}

TEST(Behaviours, A8_OneUnitForTheWholeModelIsWarnedAbout) {
  const auto task = testing::mlp_problem({32, 32, 32, 32, 32, 32, 32, 32, 32});
  const testing::TrainOptions options{.steps = 2};
  const StateDict expected = testing::train_reference(task, options);
  const auto peak_share = [&](const WrapPolicy& policy) {
    double share = 0;
    comm::run_as_threads(2, [&](comm::World& world) {
      const auto model = task.build();
      const auto sharded = fully_shard(model, world.mesh(), {.auto_wrap_policy = policy});
      testing::train_steps(*model, sharded, world, task, options);
      std::int64_t total = 0;
      for (const UnitCounters& unit : sharded.counters().units) total += unit.bytes;
      if (world.rank() == 0) {
        share = static_cast<double>(sharded.counters().peak_unsharded_bytes) /
                static_cast<double>(total);
      }
      testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
    });
    return share;
  };
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(peak_share(root_only()), 1);
  const std::string warning = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(warning, ::testing::HasSubstr("auto_wrap_policy"));
  ::testing::internal::CaptureStderr();
  EXPECT_LE(peak_share(wrap_modules<torch::nn::LinearImpl>()), 2.0 / 8);
  EXPECT_LE(peak_share(automatic()), 2.0 / 8);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::IsEmpty());
}

TEST(Behaviours, A10_GradientsAreShardedAfterBackward) {
  const auto task = testing::gpt_problem(64, 32, 3);
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    std::map<std::string, c10::weak_intrusive_ptr<c10::StorageImpl>> whole;
    for (const auto& item : model->named_parameters()) {
      item.value().register_hook([&whole, name = item.key()](const at::Tensor& gradient) {
        EXPECT_GT(gradient.storage().nbytes(), 0) << name;
        whole.emplace(name, gradient.storage().getWeakStorageImpl());
      });
    }
    const auto batch = rows_of_rank(task.batch(0), world.rank(), world.size());
    model->loss(batch.x, batch.y).backward();
    EXPECT_EQ(whole.size(), model->named_parameters().size());
    for (const auto& item : model->named_parameters()) {
      EXPECT_EQ(item.value().grad().storage().nbytes(), 0) << item.key();
    }
    std::int64_t largest_shard = 0;
    for (const UnitCounters& unit : sharded.counters().units) {
      largest_shard = std::max(largest_shard, unit.bytes / world.size() + 64);
    }
    std::int64_t sum = 0;
    const void* last = nullptr;
    for (const auto& shard : sharded.named_parameters()) {
      const at::Tensor gradient = shard.tensor.grad();
      ASSERT_TRUE(gradient.defined()) << shard.name;
      const auto bytes = static_cast<std::int64_t>(gradient.storage().nbytes());
      EXPECT_LE(bytes, largest_shard) << shard.name;
      if (std::exchange(last, gradient.storage().data()) != gradient.storage().data()) sum += bytes;
    }
    EXPECT_EQ(sum, sharded.counters().gradient_bytes);
    world.group().barrier({});  // then every rank has read the others' gradients
    EXPECT_EQ(sharded.counters().unreduced_gradient_bytes, 0);
    for (const auto& [name, gradient] : whole) EXPECT_TRUE(gradient.expired()) << name;
  });
}

}  // namespace
}  // namespace fullshard::shard
