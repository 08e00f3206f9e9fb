#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "support/networks.h"
#include "support/training.h"

// Resharding to a smaller group between forward and backward, where ranks own unequal shares and
// little may be gathered at once.

namespace fullshard::shard {
namespace {

const testing::Problem kTask = testing::gpt_problem(17, 6, 3, /*tied=*/true);

std::int64_t largest_unit() {
  comm::World alone = comm::single_rank();
  std::int64_t largest = 0;
  for (const UnitCounters& unit : fully_shard(kTask.build(), alone.mesh()).counters().units) {
    largest = std::max(largest, unit.bytes);
  }
  return largest;
}

void expect_equal(comm::World& world, const FullyShardOptions& sharding, const StateDict& expected,
                  const testing::TrainOptions& options) {
  const auto model = kTask.build();
  const auto sharded = fully_shard(model, world.mesh(), sharding);
  testing::train_steps(*model, sharded, world, kTask, options);
  testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
  if (sharding.max_unsharded_bytes > 0) {
    EXPECT_LE(sharded.counters().peak_unsharded_bytes, sharding.max_unsharded_bytes);
  }
  std::int64_t whole = 0;
  for (const UnitCounters& unit : sharded.counters().units) whole += unit.bytes;
  const auto rows = testing::rows_of_rank(kTask.batch(0), world.rank(), world.size());
  const at::Tensor loss = model->loss(rows.x, rows.y);
  // Every rank of the smaller groups has half, whatever it owns.
  EXPECT_GT(sharded.counters().resharded_bytes, whole / 4);
  EXPECT_LE(sharded.counters().resharded_bytes, whole * 3 / 4);
  loss.backward();
  EXPECT_EQ(sharded.counters().resharded_bytes, 0);
}

TEST(ReshardAfterForward, WithWeightsAndUnderALimit) {
  const testing::TrainOptions options{.steps = 4, .max_norm = 0.5};
  const StateDict expected = testing::train_reference(kTask, options);
  const std::int64_t largest = largest_unit();
  struct Setting {
    std::vector<double> weights;
    std::int64_t limit;
  };
  const std::vector<Setting> settings = {
      {{3, 1, 0, 2}, 0}, {{3, 1, 0, 2}, largest}, {{0, 0, 1, 0}, 2 * largest}, {{}, largest}};
  testing::run_over_gloo(4, [&](comm::World& world) {
    for (const auto& [weights, limit] : settings) {
      SCOPED_TRACE(::testing::Message()
                   << "limit " << limit << ", weights " << ::testing::PrintToString(weights));
      expect_equal(
          world,
          {.shard_weights = weights, .max_unsharded_bytes = limit, .reshard_after_forward = 2},
          expected, options);
    }
  });
}

}  // namespace
}  // namespace fullshard::shard
