#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "fullshard/base/error.h"
#include "support/networks.h"
#include "support/training.h"

// K: reading and editing whole parameters.

namespace fullshard::shard {
namespace {

TEST(Behaviours, K4_ReadingAndEditingFullWeights) {
  const auto task = testing::gpt_problem(17, 7, 2, /*tied=*/true, at::kFloat);
  const StateDict original = testing::parameters_of(*task.build());
  StateDict doubled;
  for (const auto& [name, value] : original) doubled[name] = value * 2;

  comm::run_as_threads(3, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    const auto double_all = [&] {
      const at::NoGradGuard no_grad;
      for (at::Tensor parameter : testing::unique_parameters(*model)) parameter.mul_(2);
    };
    const auto seen = [&] { return testing::parameters_of(*model); };
    {
      const auto scope = sharded.unsharded();
      testing::expect_bitwise_equal(seen(), original);
      double_all();
      testing::expect_bitwise_equal(seen(), doubled);
    }
    testing::expect_bitwise_equal(seen(), original);  // read-only: discarded
    try {
      const auto scope = sharded.unsharded(UnshardedMode::kWrite);
      double_all();
      throw std::runtime_error("inside");
    } catch (const std::runtime_error&) {
    }
    testing::expect_bitwise_equal(seen(), original);
    EXPECT_EQ(sharded.counters().staging_bytes, 0);
    {
      const auto scope = sharded.unsharded(UnshardedMode::kWrite);
      double_all();
    }
    testing::expect_bitwise_equal(seen(), doubled);
    sharded.release();
    EXPECT_EQ(sharded.counters().live_unsharded_bytes, 0);
    const auto batch = testing::rows_of_rank(task.batch(0), world.rank(), world.size());
    model->loss(batch.x, batch.y).backward();  // and it trains on
    EXPECT_GT(sharded.grad_norm(), 0);
  });
}

TEST(Behaviours, K4_WholeStateInsideAScopeIsWhatTheScopeShows) {
  const auto task = testing::gpt_problem(17, 6, 2);
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    const auto scope = sharded.unsharded(UnshardedMode::kWrite);
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor parameter : testing::unique_parameters(*model)) parameter.add_(1);
    }
    const StateDict inside = sharded.full_state_dict();
    testing::expect_bitwise_equal(testing::parameters_of(*model), inside);
    EXPECT_THROW(sharded.load_state_dict(inside), base::Error);
  });
}

// Closing the scope would undo it, all of it or that of some units.
TEST(Behaviours, K4_AnUpdateInsideAScopeIsRefusedWhole) {
  const auto task = testing::gpt_problem(17, 6, 2);
  const std::vector<FullyShardOptions> choices = {
      {.sharding_strategy = ShardingStrategy::NO_SHARD},
      {.rules = {{.pattern = "*norm*", .strategy = ShardingStrategy::NO_SHARD}}},
      {.rules = {{.pattern = "table.*", .strategy = ShardingStrategy::NO_SHARD}}}};
  // AdamW's step counts and moments would show in the next step.
  const StateDict expected =
      testing::train_reference(task, {.steps = 1, .optimizer = testing::Optimizer::kFusedAdamW});
  testing::run_both_ways(2, [&](comm::World& world) {
    for (const FullyShardOptions& sharding : choices) {
      const auto model = task.build();
      const auto sharded = fully_shard(model, world.mesh(), sharding);
      optim::AdamW optimizer = testing::fused_adamw(sharded);
      const auto rows = testing::rows_of_rank(task.batch(0), world.rank(), world.size());
      model->loss(rows.x, rows.y).backward();
      const StateDict before = sharded.full_state_dict();
      {
        auto scope = sharded.unsharded(UnshardedMode::kWrite);
        try {
          optimizer.step();
          ADD_FAILURE() << "no error";
        } catch (const base::Error& error) {
          EXPECT_EQ(error.code(), base::ErrorCode::kMisuse);
          EXPECT_THAT(error.what(), ::testing::HasSubstr("an unsharded() scope is open"));
        }
        testing::expect_bitwise_equal(testing::parameters_of(*model), before);
      }
      testing::expect_bitwise_equal(sharded.full_state_dict(), before);
      optimizer.step();
      testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
    }
  });
}

}  // namespace
}  // namespace fullshard::shard
