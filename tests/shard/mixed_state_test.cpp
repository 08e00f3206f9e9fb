#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "fullshard/base/error.h"
#include "support/networks.h"
#include "support/training.h"

// Shards in one dtype, computation in another: what is read, edited, saved and loaded is the
// shards'.

namespace fullshard::shard {
namespace {

using ::testing::HasSubstr;

const testing::Problem kMlp = testing::mlp_problem({6, 10, 7, 4}, at::kFloat);
const testing::Problem kGpt = testing::gpt_problem(17, 8, 2, /*tied=*/true, at::kFloat);
const MixedPrecision kMixed{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};

TEST(MixedState, D7_MastersAreWhatIsReadSavedAndLoaded) {
  testing::run_on_every_backend(2, [&](comm::World& world) {
    const auto model = kMlp.build();
    const StateDict before = testing::parameters_of(*kMlp.build());
    const auto sharded = fully_shard(model, world.mesh(), {.mixed_precision = kMixed});
    testing::expect_bitwise_equal(sharded.full_state_dict(), before);
    StateDict other = before;
    for (auto& [name, values] : other) values = values * 1.0009765625 + 1e-3;
    sharded.load_state_dict(other);
    testing::expect_bitwise_equal(sharded.full_state_dict(), other);
    {
      const auto scope = sharded.unsharded();
      testing::expect_bitwise_equal(testing::parameters_of(*model), other);
    }
    const at::NoGradGuard no_grad;
    const auto rows = kMlp.batch(0);
    const auto plain = kMlp.build();
    for (const auto& item : plain->named_parameters()) item.value().copy_(other.at(item.key()));
    plain->to(at::kBFloat16);
    EXPECT_TRUE(
        at::equal(model->loss(rows.x, rows.y), plain->loss(rows.x.to(at::kBFloat16), rows.y)));
  });
}

TEST(MixedState, EditsInAScopeReachTheMasters) {
  testing::run_on_every_backend(2, [&](comm::World& world) {
    const auto model = kGpt.build();
    const StateDict before = testing::parameters_of(*kGpt.build());
    const auto sharded = fully_shard(model, world.mesh(), {.mixed_precision = kMixed});
    const auto add = [&](UnshardedMode mode) {
      const at::NoGradGuard no_grad;
      const auto scope = sharded.unsharded(mode);
      for (const at::Tensor& parameter : testing::unique_parameters(*model)) {
        EXPECT_EQ(parameter.scalar_type(), at::kFloat);
        at::Tensor(parameter).add_(std::ldexp(1.0, -14));
      }
    };
    add(UnshardedMode::kReadOnly);
    testing::expect_bitwise_equal(sharded.full_state_dict(), before);
    add(UnshardedMode::kWrite);
    StateDict expected = before;
    for (auto& [name, values] : expected) values = values + std::ldexp(1.0, -14);
    testing::expect_bitwise_equal(sharded.full_state_dict(), expected);
    const auto rows = kGpt.batch(0);
    model->loss(rows.x, rows.y).backward();
  });
}

TEST(MixedState, ARankMayEvaluateBeforeItReadsTheWhole) {
  testing::run_on_every_backend(2, [&](comm::World& world) {
    const auto model = kMlp.build();
    const auto sharded = fully_shard(model, world.mesh(), {.mixed_precision = kMixed});
    const auto optimizer = testing::stock_optimizer(testing::Optimizer::kSgd, sharded.parameters());
    const auto rows = kMlp.batch(0);
    model->loss(rows.x, rows.y).backward();
    optimizer->step();
    if (world.rank() == 1 && world.group().shares_memory()) {
      const at::NoGradGuard no_grad;
      model->loss(rows.x, rows.y);
    }
    EXPECT_EQ(sharded.full_state_dict().size(), 6);
  });
}

TEST(MixedState, AScopeUnderInferenceModeLeavesATrainableModel) {
  comm::World world = comm::single_rank();
  const auto model = kMlp.build();
  const auto sharded = fully_shard(model, world.mesh(), {.mixed_precision = kMixed});
  const auto rows = kMlp.batch(0);
  {
    const c10::InferenceMode inference;
    const auto scope = sharded.unsharded();
    model->loss(rows.x, rows.y);
  }
  model->loss(rows.x, rows.y).backward();
  for (const at::Tensor& shard : sharded.parameters()) EXPECT_TRUE(shard.grad().defined());
}

TEST(MixedState, AWriteThroughAnOlderViewIsAnError) {
  comm::World world = comm::single_rank();
  const auto model = kMlp.build();
  const auto sharded = fully_shard(model, world.mesh(), {.mixed_precision = kMixed});
  const at::NoGradGuard no_grad;
  at::Tensor view = model->parameters().front().t();
  const auto scope = sharded.unsharded(UnshardedMode::kWrite);
  try {
    view.mul_(2);
    ADD_FAILURE() << "was written";
  } catch (const base::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("take views inside the scope"));
  }
}

TEST(MixedState, ABackwardInAScopeIsAnErrorThatSaysSo) {
  comm::World world = comm::single_rank();
  const auto model = kMlp.build();
  const auto sharded = fully_shard(model, world.mesh(), {.mixed_precision = kMixed});
  const auto rows = kMlp.batch(0);
  {
    const auto scope = sharded.unsharded();
    try {
      model->loss(rows.x, rows.y).backward();
      ADD_FAILURE() << "went on";
    } catch (const base::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("close the scope before training goes on"));
    }
  }
  model->loss(rows.x, rows.y).backward();
}

TEST(MixedState, RanksThatStartApartKeepTheirOwnMasters) {
  testing::run_on_every_backend(2, [&](comm::World& world) {
    const auto model = kMlp.build();
    const auto sharded =
        fully_shard(model, world.mesh(), {.mixed_precision = kMixed, .sync_module_states = false});
    testing::expect_bitwise_equal(sharded.full_state_dict(), testing::parameters_of(*kMlp.build()));
    const at::NoGradGuard no_grad;
    const auto rows = kMlp.batch(0);
    const auto plain = kMlp.build();
    plain->to(at::kBFloat16);
    EXPECT_TRUE(
        at::equal(model->loss(rows.x, rows.y), plain->loss(rows.x.to(at::kBFloat16), rows.y)));
  });
}

}  // namespace
}  // namespace fullshard::shard
