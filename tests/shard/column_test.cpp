#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/training.h"

// Parameters that are cut into columns: their memory is transposed, the module must not notice.

namespace fullshard::shard {
namespace {

using layout::Atom;
using ::testing::HasSubstr;
using testing::TrainOptions;

const testing::Problem kTask = testing::mlp_problem({16, 24, 8});
const TrainOptions kOptions{.steps = 4, .optimizer = testing::Optimizer::kFusedAdamW};

// As an MLP is divided: rows of the first matrix and columns of the second belong together.
FullyShardOptions rows_and_columns(std::int64_t group) {
  return {.rules = {{.pattern = "layers.0.weight", .atom = Atom::kRow, .group = group},
                    {.pattern = "layers.1.weight", .atom = Atom::kColumn, .group = group}}};
}

class Columns : public ::testing::TestWithParam<int> {};

TEST_P(Columns, TrainingEqualsUnsharded) {
  const StateDict expected = testing::train_reference(kTask, kOptions);
  for (const std::int64_t group : {1, 3, 8}) {
    for (const auto strategy :
         {ShardingStrategy::FULL_SHARD, ShardingStrategy::SHARD_GRAD_OP,
          ShardingStrategy::SHARD_OPTIMIZER_ONLY, ShardingStrategy::NO_SHARD}) {
      comm::run_as_threads(GetParam(), [&](comm::World& world) {
        FullyShardOptions sharding = rows_and_columns(group);
        sharding.sharding_strategy = strategy;
        testing::expect_match(testing::train_sharded(kTask, world, sharding, kOptions), expected,
                              1e-10);
      });
    }
  }
}

TEST_P(Columns, ARankOwnsWholeColumnsAndTheirGradients) {
  const auto plain = kTask.build();
  const testing::Batch batch = kTask.batch(0);
  plain->loss(batch.x, batch.y).backward();
  comm::run_as_threads(GetParam(), [&](comm::World& world) {
    const auto model = kTask.build();
    const auto sharded = fully_shard(model, world.mesh(), rows_and_columns(4));
    const auto rows = testing::rows_of_rank(batch, world.rank(), world.size());
    model->loss(rows.x, rows.y).backward();
    for (const state::ShardedTensor& shard : sharded.named_parameters()) {
      const at::Tensor whole = plain->named_parameters()[shard.name];
      EXPECT_TRUE(shard.tensor.equal(part_of(shard, whole.detach()))) << shard.name;
      EXPECT_TRUE(at::allclose(shard.tensor.grad(), part_of(shard, whole.grad()), 1e-10, 1e-12));
      if (shard.name != "layers.1.weight") continue;
      EXPECT_EQ(shard.dimension, 1);
      EXPECT_EQ(shard.begin % (4 * 8), 0);
      const at::Tensor columns = whole.detach().slice(1, shard.begin / 8, shard.end / 8);
      EXPECT_TRUE(shard.tensor.equal(columns.t().flatten()));
    }
  });
}

TEST_P(Columns, FullStateIsSavedAndLoadedAsIfItWereNotCut) {
  const StateDict start = testing::parameters_of(*kTask.build());
  StateDict other;
  for (const auto& [name, value] : start) other[name] = at::rand_like(value);
  comm::run_as_threads(GetParam(), [&](comm::World& world) {
    for (const bool sync : {true, false}) {
      FullyShardOptions sharding = rows_and_columns(2);
      sharding.sync_module_states = sync;
      const auto model = kTask.build();
      const auto sharded = fully_shard(model, world.mesh(), sharding);
      testing::expect_bitwise_equal(sharded.full_state_dict(), start);
      EXPECT_TRUE(sharded.full_state_dict().at("layers.1.weight").is_contiguous());
      sharded.load_state_dict(other);
      testing::expect_bitwise_equal(sharded.full_state_dict(), other);
      testing::expect_bitwise_equal(testing::parameters_of(*model), other);
    }
  });
}

TEST(ColumnState, EditedInAScopeTheyKeepTheirPlaces) {
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = kTask.build();
    const auto sharded = fully_shard(model, world.mesh(), rows_and_columns(1));
    StateDict expected = sharded.full_state_dict();
    expected.at("layers.1.weight").select(1, 5).fill_(7);
    {
      const at::NoGradGuard no_grad;
      auto scope = sharded.unsharded(UnshardedMode::kWrite);
      model->named_parameters()["layers.1.weight"].select(1, 5).fill_(7);
      scope.close();
    }
    testing::expect_bitwise_equal(sharded.full_state_dict(), expected);
  });
}

TEST(ColumnState, TheTableCountsThem) {
  comm::run_as_threads(3, [&](comm::World& world) {
    const auto sharded = fully_shard(kTask.build(), world.mesh(), rows_and_columns(8));
    EXPECT_THAT(sharded.describe(), HasSubstr("layers.1.weight  [8, 24]  0:columns["));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Columns, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace fullshard::shard
