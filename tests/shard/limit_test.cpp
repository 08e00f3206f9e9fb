#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "fullshard/base/error.h"
#include "support/networks.h"
#include "support/training.h"

// What max_unsharded_bytes says of the bytes gathered at a time.

namespace fullshard::shard {
namespace {

const testing::Problem kTask = testing::gpt_problem(17, 6, 3, /*tied=*/true);
const testing::TrainOptions kOptions{.steps = 4, .max_norm = 0.5};

std::int64_t largest_unit(comm::World& world) {
  std::int64_t largest = 0;
  for (const UnitCounters& unit : fully_shard(kTask.build(), world.mesh()).counters().units) {
    largest = std::max(largest, unit.bytes);
  }
  return largest;
}

TEST(Limit, HoldsInTraining) {
  comm::run_as_threads(2, [&](comm::World& world) {
    const std::int64_t largest = largest_unit(world);
    const auto model = kTask.build();
    const auto sharded = fully_shard(
        model, world.mesh(),
        {.sharding_strategy = ShardingStrategy::SHARD_GRAD_OP, .max_unsharded_bytes = 2 * largest});
    testing::train_steps(*model, sharded, world, kTask, kOptions);
    EXPECT_LE(sharded.counters().peak_unsharded_bytes, 2 * largest);
    EXPECT_THROW(fully_shard(kTask.build(), world.mesh(), {.max_unsharded_bytes = largest - 1}),
                 base::Error);
  });
}

// What they read comes beside what an earlier pass has left.
TEST(Limit, HoldsForWholeStatesAndScopes) {
  testing::run_both_ways(2, [&](comm::World& world) {
    const StateDict expected = testing::parameters_of(*kTask.build());
    const std::int64_t largest = largest_unit(world);
    for (const bool recorded : {false, true}) {
      const auto model = kTask.build();
      const auto sharded = fully_shard(model, world.mesh(), {.max_unsharded_bytes = largest});
      const auto rows = testing::rows_of_rank(kTask.batch(0), world.rank(), world.size());
      const auto forward = [&] {
        const at::AutoGradMode mode(recorded);
        model->loss(rows.x, rows.y);
      };
      forward();
      testing::expect_bitwise_equal(sharded.full_state_dict(), expected);
      forward();
      sharded.unsharded();
      model->loss(rows.x, rows.y).backward();
      EXPECT_LE(sharded.counters().peak_unsharded_bytes, largest);
    }
  });
}

}  // namespace
}  // namespace fullshard::shard
