#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "fullshard/base/error.h"
#include "support/equality.h"
#include "support/networks.h"

// Ranks, and steps, that do not all use the same units in the same order.

namespace fullshard::shard {
namespace {

using testing::Batch;
using testing::EqualityOptions;
using ::testing::HasSubstr;
using testing::Passes;
using testing::Problem;
using testing::Turn;

// Equal-shaped units that `order` chooses and orders.
struct Chooser : testing::Model {
  Chooser() {
    for (int i = 0; i < 3; ++i) units->push_back(torch::nn::Linear(4, 4));
    register_module("units", units);
    head = register_module("head", torch::nn::Linear(4, 4));
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    at::Tensor h = x;
    for (const std::size_t i : order) {
      h = torch::tanh(units[i]->as<torch::nn::Linear>()->forward(h));
    }
    return (head(h) - y).pow(2).mean();
  }
  torch::nn::ModuleList units;
  torch::nn::Linear head{nullptr};
  std::vector<std::size_t> order;
};

const Problem kTask = testing::problem_of<Chooser>(4, 4);
constexpr int kRanks = 2;

using Order = std::function<std::vector<std::size_t>(std::int64_t step, int rank)>;

// Each rank runs its units in its order; the unsharded run averages what all ranks would do.
Passes in_order(const Order& order) {
  return [=](testing::Model& model, const Batch& batch, const Turn& turn) {
    auto& chooser = static_cast<Chooser&>(model);
    const bool unsharded = turn.size == 1;
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (int rank = 0; rank < (unsharded ? kRanks : 1); ++rank) {
      const Batch rows = unsharded ? testing::rows_of_rank(batch, rank, kRanks) : batch;
      chooser.order = order(turn.step, unsharded ? rank : turn.rank);
      sum = sum + chooser.loss(rows.x, rows.y) / (unsharded ? kRanks : 1);
    }
    sum.backward();
  };
}

// Ranks that share memory may differ anyhow; others with `dynamic`.
void expect_equal(const Order& order) {
  const EqualityOptions options{.ranks = kRanks, .training = {.steps = 6}};
  testing::expect_equal_passes_for_strategies(kTask, in_order(order), options);
  EqualityOptions apart = options;
  apart.over_gloo = true;
  apart.sharding.dynamic = true;
  testing::expect_equal_passes_for_strategies(kTask, in_order(order), apart);
  apart.over_gloo = false;
  apart.everywhere = true;
  testing::expect_equal_passes(kTask, in_order(order), apart);
}

TEST(Behaviours, C1_AUnitThatOneRankSkipsCountsAsZeroGradient) {
  expect_equal([](std::int64_t step, int rank) -> std::vector<std::size_t> {
    if (step == 2 && rank == 1) return {0, 1};
    return {0, 2, 1};
  });
  expect_equal([](std::int64_t step, int rank) -> std::vector<std::size_t> {
    if (step >= 2 && rank == 0) return {};
    return {0, 2, 1};
  });
}

// The rank that skips reads nothing that other ranks write, and still must not keep them waiting.
TEST(Behaviours, C1_ARankThatSkipsTheOnlyShardedUnit) {
  const Order order = [](std::int64_t step, int rank) -> std::vector<std::size_t> {
    if (step % 2 == 1 && rank == 1) return {0, 1};
    return {0, 2, 1};
  };
  const std::vector<ParameterRule> rules = {
      {.pattern = "units.2.*", .strategy = ShardingStrategy::FULL_SHARD}};
  for (const bool over_gloo : {false, true}) {
    testing::expect_equal_passes(kTask, in_order(order),
                                 {.ranks = kRanks,
                                  .training = {.steps = 6},
                                  .sharding = {.sharding_strategy = ShardingStrategy::NO_SHARD,
                                               .rules = rules,
                                               .dynamic = over_gloo},
                                  .over_gloo = over_gloo});
  }
}

// What each rank's training ends in when its ranks run their units in these orders and cannot
// share memory, on one host or on two, without `dynamic`: an error with `in_message`, and with what
// this rank has used.
void expect_mismatch(const Order& order, const std::vector<std::string>& in_message,
                     const std::vector<std::string>& used) {
  const auto failed = [&](comm::World& world) {
    const auto model = kTask.build();
    auto& chooser = static_cast<Chooser&>(*model);
    const auto sharded = fully_shard(model, world.mesh());
    for (std::int64_t step = 0; step < 4; ++step) {
      const Batch batch = testing::rows_of_rank(kTask.batch(step), world.rank(), world.size());
      chooser.order = order(step, world.rank());
      chooser.loss(batch.x, batch.y).backward();
    }
  };
  constexpr auto kTimeout = std::chrono::seconds(5);
  const auto body = [&](comm::World& world) {
    try {
      failed(world);
      ADD_FAILURE() << "rank " << world.rank() << " did not fail";
    } catch (const base::Error& error) {
      EXPECT_EQ(error.code(), base::ErrorCode::kMismatch) << error.what();
      for (const std::string& text : in_message) EXPECT_THAT(error.what(), HasSubstr(text));
      EXPECT_THAT(error.what(), HasSubstr(used[static_cast<std::size_t>(world.rank())]));
    }
  };
  const auto start = std::chrono::steady_clock::now();
  testing::run_over_gloo(kRanks, body, {.timeout = kTimeout});
  testing::run_on_hosts(kRanks, 1, body, {.timeout = kTimeout});
  EXPECT_LT(std::chrono::steady_clock::now() - start, kTimeout + std::chrono::seconds(10));
}

TEST(Behaviours, C1_WithoutDynamicASkippedUnitIsNamedAndWhoCalledIt) {
  expect_mismatch(
      [](std::int64_t step, int rank) -> std::vector<std::size_t> {
        if (step == 2 && rank == 1) return {0, 1};
        return {0, 2, 1};
      },
      {"ranks made different calls", "rank 0: all_gather", "unit 'units.1'",
       "rank 1: reduce_scatter"},
      {"rank 0 has used 'units.0', 'units.2', 'units.1', '(root)'",
       "rank 1 has used 'units.0', 'units.1', '(root)', and not, so far, 'units.2' as in the step "
       "before"});
}

// All units come together, also those that a rank does not use, and count as live.
TEST(Behaviours, C1_WithDynamicAllUnitsCountAndMustFit) {
  testing::run_over_gloo(kRanks, [&](comm::World& world) {
    const auto model = kTask.build();
    auto& chooser = static_cast<Chooser&>(*model);
    const auto sharded = fully_shard(model, world.mesh(), {.dynamic = true});
    std::int64_t total = 0;
    for (const UnitCounters& unit : sharded.counters().units) total += unit.bytes;
    EXPECT_EQ(sharded.counters().live_unsharded_bytes, 0);
    if (world.rank() == 0) chooser.order = {0, 1};
    const Batch batch = testing::rows_of_rank(kTask.batch(0), world.rank(), world.size());
    chooser.loss(batch.x, batch.y).backward();
    EXPECT_EQ(sharded.counters().live_unsharded_bytes, total);
    EXPECT_EQ(sharded.counters().peak_unsharded_bytes, total);
    try {
      fully_shard(kTask.build(), world.mesh(), {.max_unsharded_bytes = total - 1, .dynamic = true});
      ADD_FAILURE() << "all units under a limit that does not hold them";
    } catch (const base::Error& error) {
      EXPECT_NE(std::string(error.what()).find("dynamic"), std::string::npos) << error.what();
    }
  });
}

TEST(Behaviours, C3_WithoutDynamicBothOrdersAreShown) {
  expect_mismatch(
      [](std::int64_t, int rank) -> std::vector<std::size_t> {
        if (rank == 0) return {0, 1, 2};
        return {0, 2, 1};
      },
      {"rank 0: all_gather", "unit 'units.1'", "rank 1: all_gather", "unit 'units.2'"},
      {"rank 0 has used 'units.0', 'units.1'", "rank 1 has used 'units.0', 'units.2'"});
}

TEST(Behaviours, C3_WithoutDynamicAllRanksMayChangeTheOrderTogether) {
  testing::expect_equal_passes(
      kTask, in_order([](std::int64_t step, int) {
        return step % 2 == 0 ? std::vector<std::size_t>{0, 1, 2} : std::vector<std::size_t>{2, 1};
      }),
      {.ranks = kRanks, .training = {.steps = 6}, .over_gloo = true});
}

TEST(Behaviours, C3_RanksRunUnitsInDifferentOrder) {
  expect_equal([](std::int64_t, int rank) -> std::vector<std::size_t> {
    if (rank == 0) return {0, 1, 2};
    return {2, 1, 0};
  });
}

TEST(Behaviours, C3_TheOrderChangesBetweenSteps) {
  expect_equal([](std::int64_t step, int) -> std::vector<std::size_t> {
    if (step % 3 == 1) return {1, 0, 2};
    if (step % 3 == 2) return {2, 1, 0};
    return {0, 1, 2};
  });
}

// Returns its input, whatever its parameter.
struct Idle : torch::nn::Module {
  Idle() { weight = register_parameter("weight", at::ones({4, 4})); }
  at::Tensor forward(const at::Tensor& x) { return x; }
  at::Tensor weight;
};

// Two encoders that take turns, and a unit that returns its input unchanged.
struct Turns : testing::Model {
  Turns() {
    for (const char* name : {"a", "b"}) {
      units.push_back(register_module(name, torch::nn::Linear(4, 4)));
    }
    register_module("idle", idle);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    return (idle->forward(units[step++ % 2](idle->forward(x))) - y).pow(2).mean();
  }
  std::vector<torch::nn::Linear> units;
  std::shared_ptr<Idle> idle = std::make_shared<Idle>();
  std::size_t step = 0;
};

// After an update, rank 1 alone reads what it has made; then all ranks do something together.
TEST(Dynamic, APassOfOneRankMayComeBeforeACallOfAll) {
  const Problem task = testing::problem_of<Turns>(4, 4);
  const StateDict expected = testing::train_reference(task, {.steps = 1});
  testing::run_over_gloo(3, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh(),
                                     {.auto_wrap_policy = wrap_named({"a", "b"}), .dynamic = true});
    testing::train_steps(*model, sharded, world, task, {.steps = 1});
    const auto read_alone = [&] {
      if (world.rank() == 1) static_cast<Turns&>(*model).units[1](at::ones({2, 4}, at::kDouble));
    };
    read_alone();
    EXPECT_GT(sharded.grad_norm(), 0);
    const StateDict trained = sharded.full_state_dict();
    testing::expect_match(trained, expected, 1e-10);
    sharded.load_state_dict(trained);
    read_alone();
    testing::expect_bitwise_equal(sharded.full_state_dict(), trained);
    sharded.load_state_dict(trained);
    read_alone();
    sharded.load_state_dict(trained);
    read_alone();
    sharded.unsharded();
  });
}

TEST(Behaviours, E7_UnitsThatAreUnusedInAStep) {
  const Problem task = testing::problem_of<Turns>(4, 4);
  constexpr std::int64_t kSteps = 6;
  const StateDict expected = testing::train_reference(task, {.steps = kSteps});
  for (const auto strategy : {ShardingStrategy::FULL_SHARD, ShardingStrategy::SHARD_GRAD_OP}) {
    testing::run_both_ways(2, [&](comm::World& world) {
      const auto model = task.build();
      const auto sharded = fully_shard(
          model, world.mesh(),
          {.auto_wrap_policy = wrap_named({"a", "b", "idle"}), .sharding_strategy = strategy});
      const auto optimizer =
          testing::stock_optimizer(testing::Optimizer::kAdamW, sharded.parameters());
      for (std::int64_t step = 0; step < kSteps; ++step) {
        const Batch batch = testing::rows_of_rank(task.batch(step), world.rank(), world.size());
        optimizer->zero_grad();
        model->loss(batch.x, batch.y).backward();
        EXPECT_EQ(sharded.counters().live_unsharded_bytes, 0);
        for (const auto& shard : sharded.named_parameters()) {
          const bool used = shard.name.starts_with(step % 2 == 0 ? "a." : "b.");
          EXPECT_EQ(shard.tensor.grad().defined(), used) << shard.name;
        }
        optimizer->step();
      }
      testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
    });
  }
}

}  // namespace
}  // namespace fullshard::shard
