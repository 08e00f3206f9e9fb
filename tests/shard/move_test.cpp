#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "fullshard/base/error.h"
#include "fullshard/optim/element_state.h"
#include "support/networks.h"
#include "support/training.h"

// Shares that move while training runs: what comes of it is what would have come without.

namespace fullshard::shard {
namespace {

using ::testing::HasSubstr;
using testing::Optimizer;
using testing::Problem;

const Problem kGpt = testing::gpt_problem(17, 8, 2, /*tied=*/true);
constexpr std::int64_t kSteps = 5;

// Weights after each step, by rank; other ones each time, among them ranks that own nothing.
std::vector<double> weights_after(std::int64_t step, int ranks) {
  std::vector<double> weights(static_cast<std::size_t>(ranks), 1.0);
  weights[static_cast<std::size_t>(step % ranks)] = step % 2 == 0 ? 0 : 7.5;
  if (ranks == 1) weights[0] = 1;
  return weights;
}

struct Course {
  FullyShardOptions sharding = {};
  comm::MeshOptions mesh = {};
  bool moves = true;
};

std::unique_ptr<torch::optim::Optimizer> make(const std::string& name,
                                              const std::vector<at::Tensor>& shards) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace)
  if (name == "sgd") return std::make_unique<SGD>(shards, SGDOptions(1e-2).momentum(0.9));
  if (name == "adam") return std::make_unique<Adam>(shards, AdamOptions(1e-2).amsgrad(true));
  if (name == "adamw") return std::make_unique<AdamW>(shards, AdamWOptions(1e-2));
  if (name == "rmsprop") {
    return std::make_unique<RMSprop>(shards, RMSpropOptions(1e-3).momentum(0.5).centered(true));
  }
  return std::make_unique<Adagrad>(shards, AdagradOptions(1e-2));
}

void step(testing::Model& model, const Problem& task, std::int64_t number, int rank, int size) {
  const auto rows = testing::rows_of_rank(task.batch(number), rank, size);
  model.loss(rows.x, rows.y).backward();
}

StateDict reference(const Problem& task, const std::string& optimizer_name) {
  const auto model = task.build();
  const auto optimizer = make(optimizer_name, testing::unique_parameters(*model));
  for (std::int64_t number = 0; number < kSteps; ++number) {
    optimizer->zero_grad();
    step(*model, task, number, 0, 1);
    optimizer->step();
  }
  return testing::parameters_of(*model);
}

StateDict train(const Problem& task, comm::World& world, const std::string& optimizer_name,
                const Course& run) {
  const auto model = task.build();
  const auto mesh = world.mesh(run.mesh);
  const auto sharded = fully_shard(model, mesh, run.sharding);
  const auto optimizer = make(optimizer_name, sharded.parameters());
  const auto state = optim::element_state(*optimizer);
  for (std::int64_t number = 0; number < kSteps; ++number) {
    step(*model, task, number, world.rank(), world.size());
    optimizer->step();
    optimizer->zero_grad();
    if (run.moves) sharded.move_shards(weights_after(number, mesh.shard->size()), {state.get()});
  }
  const bool is_cut =
      mesh.shard->size() > 1 && run.sharding.sharding_strategy != ShardingStrategy::NO_SHARD;
  EXPECT_EQ(sharded.counters().shard_moves > 0, run.moves && is_cut);
  return sharded.full_state_dict();
}

class MovedOptimizer : public ::testing::TestWithParam<std::string> {};

TEST_P(MovedOptimizer, TrainingIsThatOfAnUnshardedRun) {
  const StateDict expected = reference(kGpt, GetParam());
  for (const int ranks : {1, 2, 3}) {
    comm::run_as_threads(ranks, [&](comm::World& world) {
      testing::expect_match(train(kGpt, world, GetParam(), {}), expected, 1e-10);
    });
  }
  testing::run_on_every_backend(4, [&](comm::World& world) {
    testing::expect_match(train(kGpt, world, GetParam(), {}), expected, 1e-10);
  });
}

INSTANTIATE_TEST_SUITE_P(All, MovedOptimizer,
                         ::testing::Values("sgd", "adam", "adamw", "rmsprop", "adagrad"),
                         [](const auto& info) { return info.param; });

TEST(MoveShards, HoldsForEveryStrategyAndGranularity) {
  const StateDict expected = reference(kGpt, "adam");
  std::vector<FullyShardOptions> all;
  for (const auto strategy : {ShardingStrategy::SHARD_GRAD_OP, ShardingStrategy::NO_SHARD,
                              ShardingStrategy::SHARD_OPTIMIZER_ONLY}) {
    all.push_back({.sharding_strategy = strategy});
  }
  all.push_back({.rules = {{.pattern = "*", .atom = layout::Atom::kUnit}}});
  all.push_back({.rules = {{.pattern = "*.up.weight", .atom = layout::Atom::kRow},
                           {.pattern = "*.down.weight", .atom = layout::Atom::kColumn},
                           {.pattern = "norm.*", .strategy = ShardingStrategy::NO_SHARD}}});
  all.push_back({.min_shard_elements = 40, .max_unsharded_bytes = 1 << 13});
  all.push_back({.dynamic = true, .reduce_bucket_bytes = 1 << 12});
  for (const FullyShardOptions& sharding : all) {
    testing::run_on_every_backend(2, [&](comm::World& world) {
      testing::expect_match(train(kGpt, world, "adam", {.sharding = sharding}), expected, 1e-10);
    });
  }
}

TEST(MoveShards, HoldsOnAMeshOfReplicas) {
  const StateDict expected = reference(kGpt, "adam");
  for (const bool divides : {false, true}) {
    const Course run{.sharding = {.sharding_strategy = ShardingStrategy::HYBRID_SHARD,
                                  .shard_optimizer_over_replicas = divides},
                     .mesh = {.replicate = 2}};
    testing::run_on_every_backend(4, [&](comm::World& world) {
      testing::expect_match(train(kGpt, world, "adam", run), expected, 1e-10);
    });
  }
}

TEST(MoveShards, MastersMoveBitForBit) {
  const Problem task = testing::gpt_problem(17, 8, 2, /*tied=*/true, at::kFloat);
  const MixedPrecision mixed{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
  for (const auto strategy : {ShardingStrategy::FULL_SHARD, ShardingStrategy::NO_SHARD}) {
    const Course still{.sharding = {.sharding_strategy = strategy, .mixed_precision = mixed},
                       .moves = false};
    Course moving = still;
    moving.moves = true;
    testing::run_on_every_backend(2, [&](comm::World& world) {
      const StateDict expected = train(task, world, "sgd", still);
      testing::expect_bitwise_equal(train(task, world, "sgd", moving), expected);
    });
  }
}

TEST(MoveShards, TheFusedOptimizerFollows) {
  const StateDict expected =
      testing::train_reference(kGpt, {.steps = kSteps, .optimizer = Optimizer::kAdamW});
  testing::run_on_every_backend(2, [&](comm::World& world) {
    const auto model = kGpt.build();
    const auto sharded = fully_shard(model, world.mesh());
    optim::AdamW optimizer = testing::fused_adamw(sharded);
    const auto state = optim::element_state(optimizer);
    for (std::int64_t number = 0; number < kSteps; ++number) {
      step(*model, kGpt, number, world.rank(), world.size());
      optimizer.step();
      optimizer.zero_grad();
      sharded.move_shards(weights_after(number, 2), {state.get()});
    }
    testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
    for (const auto& part : optimizer.state()) {
      if (!part.replicated) EXPECT_EQ(part.tensor.numel(), part.end - part.begin) << part.name;
    }
  });
}

TEST(MoveShards, ShardsAreWhatTheWeightsSay) {
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto sharded = fully_shard(kGpt.build(), world.mesh());
    const std::vector<at::Tensor> before = sharded.parameters();
    sharded.move_shards({0, 1});
    const std::vector<at::Tensor> after = sharded.parameters();
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(after[i].is_same(before[i]));
      const auto& shard = sharded.named_parameters()[i];
      EXPECT_EQ(shard.tensor.numel(), shard.end - shard.begin);
      if (world.rank() == 0) EXPECT_EQ(shard.tensor.numel(), 0) << shard.name;
    }
    EXPECT_EQ(sharded.counters().parameter_shard_bytes == 0, world.rank() == 0);
  });
}

template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const base::Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(MoveShards, NothingMovesWhereItCannot) {
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = kGpt.build();
    const auto sharded = fully_shard(model, world.mesh());
    const auto move = [&](const std::vector<double>& weights) {
      return error_of([&] { sharded.move_shards(weights); });
    };
    const std::string table = sharded.describe();
    EXPECT_THAT(move({1}), HasSubstr("1 weights for 2 ranks"));
    EXPECT_THAT(move({-1, 1}), HasSubstr("it must be finite and not negative"));
    {
      const auto scope = sharded.unsharded();
      EXPECT_THAT(move({1, 2}), HasSubstr("unsharded() scope is open"));
    }
    step(*model, kGpt, 0, world.rank(), 2);
    EXPECT_THAT(move({1, 2}), HasSubstr("call zero_grad()"));
    sharded.zero_grad();
    sharded.set_requires_gradient_sync(false);
    step(*model, kGpt, 0, world.rank(), 2);
    EXPECT_THAT(move({1, 2}), HasSubstr("passes without gradient sync"));
    EXPECT_EQ(sharded.describe(), table);
  });
}

TEST(MoveShards, RanksThatPassDifferentWeightsGetAnError) {
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto sharded = fully_shard(kGpt.build(), world.mesh());
    EXPECT_THAT(error_of([&] {
                  sharded.move_shards({1, 2.0 + world.rank()});
                }),
                HasSubstr("ranks want to cut by different weights"));
    EXPECT_FALSE(sharded.move_shards({3, 3})) << "as it is cut already";
    EXPECT_TRUE(sharded.move_shards({3, 1}));
  });
}

// Keeps something for some parameters.
struct Partial final : state::ElementState {
  explicit Partial(bool has) : has(has) {}
  std::string name() const override { return "the average"; }
  std::vector<std::vector<at::Tensor>> tensors(
      std::span<const state::ShardedTensor> shards) override {
    std::vector<std::vector<at::Tensor>> out;
    for (const auto& shard : shards) {
      out.push_back({has ? at::ones_like(shard.tensor) : at::Tensor()});
    }
    return out;
  }
  void replace(std::span<const state::ShardedTensor>,
               std::vector<std::vector<at::Tensor>>) override {}
  bool has;
};

TEST(MoveShards, StateOnSomeRanksOnlyIsAnErrorThatNamesTheParameter) {
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto sharded = fully_shard(kGpt.build(), world.mesh());
    Partial average(world.rank() == 0);
    EXPECT_THAT(error_of([&] {
                  sharded.move_shards({1, 2}, {&average});
                }),
                HasSubstr("the average has something for parameter 'table.weight'"));
  });
}

}  // namespace
}  // namespace fullshard::shard
