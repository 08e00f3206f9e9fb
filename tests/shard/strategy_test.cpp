#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "fullshard/base/error.h"
#include "fullshard/schedule/simulate.h"
#include "fullshard/schedule/text.h"
#include "support/equality.h"
#include "support/networks.h"
#include "support/training.h"

// Strategies beyond the plain ones: replicas, per-parameter rules, atoms, weights, limits.

namespace fullshard::shard {
namespace {

using testing::expect_match;
using ::testing::HasSubstr;
using testing::TrainOptions;

const testing::Problem kTask = testing::gpt_problem(17, 6, 3, /*tied=*/true);
const TrainOptions kOptions{.steps = 4, .max_norm = 0.5};

void expect_equal_to_reference(int ranks, const comm::MeshOptions& mesh_options,
                               const FullyShardOptions& sharding) {
  const StateDict expected = testing::train_reference(kTask, kOptions);
  comm::run_as_threads(ranks, [&](comm::World& world) {
    const comm::Mesh mesh = world.mesh(mesh_options);
    const auto model = kTask.build();
    const auto sharded = fully_shard(model, mesh, sharding);
    testing::train_steps(*model, sharded, world, kTask, kOptions);
    expect_match(sharded.full_state_dict(), expected, 1e-10);
  });
}

TEST(Strategy, HybridEqualsUnsharded) {
  expect_equal_to_reference(4, {.replicate = 2},
                            {.sharding_strategy = ShardingStrategy::HYBRID_SHARD});
  expect_equal_to_reference(4, {.replicate = 4},
                            {.sharding_strategy = ShardingStrategy::HYBRID_SHARD});
  expect_equal_to_reference(4, {.replicate = 2},
                            {.sharding_strategy = ShardingStrategy::SHARD_GRAD_OP});
}

TEST(Strategy, HybridStartsFromRank0OnEveryReplica) {
  const StateDict expected = testing::parameters_of(*kTask.build());
  comm::run_as_threads(4, [&](comm::World& world) {
    const auto model = kTask.build();
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : testing::unique_parameters(*model)) parameter.add_(world.rank());
    }
    const auto sharded = fully_shard(model, world.mesh({.replicate = 2}));
    testing::expect_bitwise_equal(testing::parameters_of(*model), expected);
  });
}

TEST(Strategy, HybridNeedsReplicas) {
  comm::World world = comm::single_rank();
  try {
    fully_shard(kTask.build(), world.mesh(), {.sharding_strategy = ShardingStrategy::HYBRID_SHARD});
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("replicate"));
  }
}

// What fully_shard says to these options in a world of one.
std::string refusal_of(const FullyShardOptions& sharding) {
  comm::World world = comm::single_rank();
  try {
    fully_shard(kTask.build(), world.mesh(), sharding);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

TEST(Strategy, ARuleForHybridNeedsReplicasToo) {
  EXPECT_THAT(refusal_of({.rules = {{.pattern = "blocks.1.*",
                                     .strategy = ShardingStrategy::HYBRID_SHARD}}}),
              ::testing::AllOf(HasSubstr("the rule for 'blocks.1.*'"), HasSubstr("replicate")));
}

TEST(Strategy, FactorsThatTurnGradientsRoundOrAwayAreErrors) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double factor : {-1.0, -1e-300, kNan, kInfinity, -kInfinity}) {
    EXPECT_THAT(refusal_of({.gradient_divide_factor = factor}),
                HasSubstr("gradient_divide_factor is"));
    EXPECT_THAT(refusal_of({.gradient_predivide_factor = factor}),
                HasSubstr("gradient_predivide_factor is"));
  }
  EXPECT_THAT(refusal_of({.gradient_predivide_factor = 0}), HasSubstr("above 0"));
}

TEST(Strategy, OptimizerOnlyGathersOnceAnUpdate) {
  expect_equal_to_reference(3, {}, {.sharding_strategy = ShardingStrategy::SHARD_OPTIMIZER_ONLY});
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = kTask.build();
    const auto sharded = fully_shard(model, world.mesh(),
                                     {.sharding_strategy = ShardingStrategy::SHARD_OPTIMIZER_ONLY});
    testing::train_steps(*model, sharded, world, kTask, kOptions);
    EXPECT_EQ(sharded.counters().live_unsharded_bytes, 0);  // an update ends every residency
    for (int pass = 0; pass < 2; ++pass) {
      const at::NoGradGuard no_grad;
      model->loss(kTask.batch(0).x, kTask.batch(0).y);
    }
    std::int64_t total = 0;
    for (const UnitCounters& unit : sharded.counters().units) {
      EXPECT_EQ(unit.all_gathers, kOptions.steps + 1) << unit.name;
      total += unit.bytes;
    }
    EXPECT_EQ(sharded.counters().live_unsharded_bytes, total);
    sharded.release();
    EXPECT_EQ(sharded.counters().live_unsharded_bytes, 0);
  });
}

TEST(Strategy, RulesGiveParametersAStrategyOfTheirOwn) {
  const std::vector<ParameterRule> rules = {
      {.pattern = "*norm*", .strategy = ShardingStrategy::NO_SHARD},
      {.pattern = "blocks.1.*", .strategy = ShardingStrategy::SHARD_GRAD_OP},
      {.pattern = "blocks.2.up.weight", .atom = layout::Atom::kRow, .group = 4},
      {.pattern = "*bias", .atom = layout::Atom::kParameter}};
  expect_equal_to_reference(3, {}, {.rules = rules});
  expect_equal_to_reference(4, {.replicate = 2}, {.rules = rules});
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = kTask.build();
    const std::string table = fully_shard(model, world.mesh(), {.rules = rules}).describe();
    EXPECT_THAT(table, HasSubstr("blocks.1 [Double, SHARD_GRAD_OP]"));
    EXPECT_THAT(table, HasSubstr("norm.weight  [6]  all ranks"));
  });
}

TEST(Strategy, AtomsAreNeverCut) {
  comm::run_as_threads(3, [&](comm::World& world) {
    const auto task = testing::mlp_problem({16, 24, 5});
    const auto model = task.build();
    const auto sharded =
        fully_shard(model, world.mesh(),
                    {.rules = {{.pattern = "*.weight", .atom = layout::Atom::kRow, .group = 2}},
                     .min_shard_elements = 100});
    for (const auto& shard : sharded.named_parameters()) {
      if (shard.name.ends_with("weight")) {
        EXPECT_EQ(shard.begin % (2 * shard.global_shape[1]), 0) << shard.name;
      } else {
        EXPECT_TRUE(shard.begin == shard.end || shard.end - shard.begin == shard.global_shape[0]);
      }
    }
  });
}

TEST(Strategy, WeightsDivideUnequally) {
  expect_equal_to_reference(3, {}, {.shard_weights = {3, 1, 0}});
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto task = testing::mlp_problem({64, 64, 64});
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh(), {.shard_weights = {3, 1}});
    std::vector<std::int64_t> bytes(2);
    const std::int64_t mine = sharded.counters().parameter_shard_bytes;
    world.group()
        .all_gather({&mine, 1, base::DType::kInt64}, {bytes.data(), 2, base::DType::kInt64}, {}, {})
        .wait();
    EXPECT_NEAR(static_cast<double>(bytes[0]) / static_cast<double>(bytes[1]), 3, 0.1);
  });
}

TEST(Strategy, TheTableSaysWhatEachRankOwns) {
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto task = testing::mlp_problem({8, 8, 4});
    const auto sharded = fully_shard(
        task.build(), world.mesh(),
        {.rules = {{.pattern = "layers.1.weight", .atom = layout::Atom::kColumn, .group = 2},
                   {.pattern = "layers.1.bias", .ignore = true}}});
    EXPECT_EQ(sharded.describe(),
              "2 ranks: 1 x shard 2\n"
              "layers.0  FULL_SHARD  float64  576 B\n"
              "  layers.0.weight  [8, 8]  0:[0,40) 1:[40,64)\n"
              "  layers.0.bias  [8]  1:[0,8)\n"
              "layers.1  FULL_SHARD  float64  256 B\n"
              "  layers.1.weight  [4, 8]  0:columns[0,4) 1:columns[4,8)  atom 2 columns\n"
              "ignored, every rank has its own\n"
              "  layers.1.bias  [4]  Double\n");
  });
}

TEST(Strategy, TheTableSaysWhereParametersMayBeCut) {
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto task = testing::mlp_problem({8, 8, 8, 4});
    const auto sharded = fully_shard(
        task.build(), world.mesh(),
        {.rules = {{.pattern = "layers.0.weight", .atom = layout::Atom::kRow, .group = 4},
                   {.pattern = "layers.1.weight", .atom = layout::Atom::kRow},
                   {.pattern = "layers.2.*",
                    .strategy = ShardingStrategy::NO_SHARD,
                    .atom = layout::Atom::kRow}},
         .min_shard_elements = 9});
    EXPECT_EQ(sharded.describe(),
              "2 ranks: 1 x shard 2\n"
              "layers.0  FULL_SHARD  float64  576 B\n"
              "  layers.0.weight  [8, 8]  0:[0,32) 1:[32,64)  atom 4 rows\n"
              "  layers.0.bias  [8]  1:[0,8)  atom parameter\n"
              "layers.1  FULL_SHARD  float64  576 B\n"
              "  layers.1.weight  [8, 8]  0:[0,40) 1:[40,64)  atom 1 row\n"
              "  layers.1.bias  [8]  1:[0,8)  atom parameter\n"
              "layers.2  NO_SHARD  float64  320 B\n"
              "  layers.2.weight  [4, 8]  all ranks\n"
              "  layers.2.bias  [4]  all ranks\n");
  });
}

TEST(Strategy, IgnoredParametersAreLeftAlone) {
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = kTask.build();
    const auto sharded =
        fully_shard(model, world.mesh(), {.rules = {{.pattern = "norm.*", .ignore = true}}});
    for (const auto& shard : sharded.named_parameters()) {
      EXPECT_FALSE(shard.name.starts_with("norm."));
    }
    const auto batch = testing::rows_of_rank(kTask.batch(0), world.rank(), world.size());
    model->loss(batch.x, batch.y).backward();
    EXPECT_GT(model->named_parameters()["norm.weight"].grad().norm().item<double>(), 0);
  });
}

TEST(Strategy, ARuleThatMatchesNothingNamesTheNearest) {
  comm::World world = comm::single_rank();
  try {
    fully_shard(kTask.build(), world.mesh(), {.rules = {{.pattern = "blocks.0.up.wieght"}}});
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'blocks.0.up.weight'"));
  }
}

TEST(Strategy, AUnitOfSeveralModules) {
  const FullyShardOptions sharding{.auto_wrap_policy =
                                       with_groups(automatic(), {{"norm", "head"}})};
  expect_equal_to_reference(2, {}, sharding);
}

TEST(Strategy, AMeshThatDoesNotFitIsAnError) {
  comm::run_as_threads(3, [&](comm::World& world) {
    EXPECT_THROW(world.mesh({.replicate = 2}), base::Error);
    EXPECT_THROW(world.mesh({.replicate = 0}), base::Error);
  });
}

std::vector<std::int64_t> unit_bytes(const Counters& counters) {
  std::vector<std::int64_t> bytes;
  for (const UnitCounters& unit : counters.units) bytes.push_back(unit.bytes);
  return bytes;
}

// What the engine counts in a step that follows its schedule is what the schedule's replay says.
void expect_as_simulated(const FullyShardOptions& sharding, const testing::Problem& task = kTask) {
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh(), sharding);
    testing::train_steps(*model, sharded, world, task, {.steps = 2});
    sharded.reset_peak();
    const Counters before = sharded.counters();
    testing::train_steps(*model, sharded, world, task, {.steps = 1});
    const Counters after = sharded.counters();
    const schedule::Schedule plan = schedule::parse(sharded.schedule());
    const auto simulated = schedule::simulate(plan, unit_bytes(after));
    EXPECT_EQ(after.peak_unsharded_bytes, simulated.peak_bytes);
    EXPECT_EQ(after.all_gathers - before.all_gathers, simulated.gathers);
    EXPECT_EQ(after.all_gather_collectives - before.all_gather_collectives, simulated.collectives);
    if (sharding.max_unsharded_bytes > 0) {
      EXPECT_LE(after.peak_unsharded_bytes, sharding.max_unsharded_bytes);
    }
  });
}

TEST(Schedule, SimulatedAndRealPeaksAreEqual) {
  comm::World alone = comm::single_rank();
  const auto probe = fully_shard(kTask.build(), alone.mesh());
  const std::vector<std::int64_t> sizes = unit_bytes(probe.counters());
  const std::int64_t largest = *std::max_element(sizes.begin(), sizes.end());
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  for (const std::int64_t limit : {std::int64_t{0}, largest, 2 * largest, total - 1, total}) {
    for (const std::int64_t bucket : {std::int64_t{0}, largest + 1, total}) {
      for (const auto& [forward, backward] : {std::pair{0, 0}, {1, 0}, {0, 1}, {2, 3}}) {
        for (const bool limited : {true, false}) {
          SCOPED_TRACE(::testing::Message()
                       << "limit " << limit << " bucket " << bucket << " depth " << forward << " "
                       << backward << " " << limited);
          expect_as_simulated({.max_unsharded_bytes = limit,
                               .forward_prefetch = forward,
                               .backward_prefetch = backward,
                               .limit_all_gathers = limited,
                               .gather_bucket_bytes = bucket});
        }
      }
    }
  }
}

TEST(Schedule, BucketsMakeFewerCollectivesOfTheSameGathers) {
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = kTask.build();
    const auto sharded =
        fully_shard(model, world.mesh(), {.gather_bucket_bytes = std::int64_t{1} << 30});
    testing::train_steps(*model, sharded, world, kTask, {.steps = 2});
    const Counters before = sharded.counters();
    testing::train_steps(*model, sharded, world, kTask, {.steps = 1});
    const Counters after = sharded.counters();
    EXPECT_LT(after.all_gather_collectives - before.all_gather_collectives,
              after.all_gathers - before.all_gathers);
  });
}

TEST(Schedule, WhatIsToBeKeptHasToBeAUnit) {
  comm::World world = comm::single_rank();
  try {
    fully_shard(kTask.build(), world.mesh(), {.keep_gathered = {"blocks.*", "block.1"}});
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("'block.1' in keep_gathered matches no unit"));
    EXPECT_THAT(error.what(), HasSubstr("'blocks.1'"));
  }
}

// Operators that use parameters of two units.
struct Across : testing::Model {
  Across() {
    for (const char* name : {"a", "b", "c"}) {
      units.push_back(register_module(name, torch::nn::Linear(6, 6)));
    }
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    at::Tensor h = x;
    for (std::size_t i = 0; i < 3; ++i) {
      h = torch::tanh(at::linear(h, units[i]->weight, units[(i + 1) % 3]->bias));
    }
    return (h - y).pow(2).mean();
  }
  std::vector<torch::nn::Linear> units;
};

// Bytes of each of its units.
std::int64_t bytes_across(int ranks) {
  std::int64_t bytes = 0;
  comm::run_as_threads(ranks, [&](comm::World& world) {
    const auto sharded = fully_shard(testing::problem_of<Across>(6, 6).build(), world.mesh(),
                                     {.auto_wrap_policy = wrap_named({"a", "b", "c"})});
    if (world.rank() == 0) bytes = sharded.counters().units.front().bytes;
  });
  return bytes;
}

TEST(Schedule, UnitsOfOneOperatorCountTogether) {
  const auto task = testing::problem_of<Across>(6, 6);
  const std::int64_t unit = bytes_across(2);
  const StateDict expected = testing::train_reference(task, kOptions);
  for (const std::int64_t limit : {std::int64_t{0}, 2 * unit, 3 * unit}) {
    SCOPED_TRACE(limit);
    const FullyShardOptions sharding{.auto_wrap_policy = wrap_named({"a", "b", "c"}),
                                     .max_unsharded_bytes = limit};
    expect_as_simulated(sharding, task);
    comm::run_as_threads(2, [&](comm::World& world) {
      expect_match(testing::train_sharded(task, world, sharding, kOptions), expected, 1e-10);
    });
  }
}

TEST(Schedule, UnitsOfOneOperatorThatDoNotFitAreNamed) {
  const auto task = testing::problem_of<Across>(6, 6);
  const std::int64_t unit = bytes_across(1);
  comm::World world = comm::single_rank();
  const auto model = task.build();
  const auto sharded = fully_shard(
      model, world.mesh(),
      {.auto_wrap_policy = wrap_named({"a", "b", "c"}), .max_unsharded_bytes = 2 * unit - 1});
  const auto batch = task.batch(0);
  for (const bool gradients : {true, false}) {
    const at::AutoGradMode mode(gradients);
    try {
      model->loss(batch.x, batch.y);
      FAIL() << "two units under a limit that holds one";
    } catch (const base::Error& error) {
      EXPECT_THAT(error.what(), ::testing::AllOf(HasSubstr("'a'"), HasSubstr("'b'"),
                                                 HasSubstr(std::to_string(2 * unit))));
    }
  }
  EXPECT_LT(sharded.counters().peak_unsharded_bytes, 2 * unit);
}

TEST(Schedule, WhatStaysForGoodCountsAgainstTheLimit) {
  comm::World world = comm::single_rank();
  std::int64_t total = 0;
  std::int64_t kept = 0;
  std::int64_t largest_other = 0;
  const std::vector<ParameterRule> rules = {
      {.pattern = "blocks.1.*", .strategy = ShardingStrategy::SHARD_OPTIMIZER_ONLY}};
  for (const UnitCounters& unit : fully_shard(kTask.build(), world.mesh()).counters().units) {
    total += unit.bytes;
    (unit.name == "blocks.1" ? kept : largest_other) =
        unit.name == "blocks.1" ? unit.bytes : std::max(largest_other, unit.bytes);
  }
  EXPECT_THAT(refusal_of({.sharding_strategy = ShardingStrategy::SHARD_OPTIMIZER_ONLY,
                          .max_unsharded_bytes = total - 1}),
              ::testing::AllOf(HasSubstr("SHARD_OPTIMIZER_ONLY"), HasSubstr("for good"),
                               HasSubstr(std::to_string(total))));
  EXPECT_THAT(refusal_of({.rules = rules, .max_unsharded_bytes = kept + largest_other - 1}),
              HasSubstr(std::to_string(kept + largest_other)));
  comm::run_as_threads(2, [&](comm::World& ranks) {
    const auto model = kTask.build();
    const auto sharded = fully_shard(model, ranks.mesh(),
                                     {.rules = rules, .max_unsharded_bytes = kept + largest_other});
    testing::train_steps(*model, sharded, ranks, kTask, kOptions);
    EXPECT_LE(sharded.counters().peak_unsharded_bytes, kept + largest_other);
  });
}

// Forwards with gradients that no backward and no update ends.
TEST(Schedule, ForwardsThatNothingEndsLeaveTrainingAsItIs) {
  const StateDict expected = testing::train_reference(kTask, kOptions);
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = kTask.build();
    const auto sharded = fully_shard(model, world.mesh());
    const auto batch = testing::rows_of_rank(kTask.batch(0), world.rank(), world.size());
    for (int i = 0; i < 400; ++i) model->loss(batch.x, batch.y);
    testing::train_steps(*model, sharded, world, kTask, kOptions);
    expect_match(sharded.full_state_dict(), expected, 1e-10);
  });
}

TEST(Schedule, P3_AUnitKeptGatheredIsGatheredOnceAStep) {
  const StateDict expected = testing::train_reference(kTask, {.steps = 5});
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = kTask.build();
    const auto sharded = fully_shard(model, world.mesh(), {.keep_gathered = {"blocks.1"}});
    testing::train_steps(*model, sharded, world, kTask, {.steps = 2});
    const Counters before = sharded.counters();
    const auto again = kTask.build();
    const auto whole = fully_shard(again, world.mesh(), {.keep_gathered = {"blocks.1"}});
    testing::train_steps(*again, whole, world, kTask, {.steps = 5});
    expect_match(whole.full_state_dict(), expected, 1e-10);  // never stale
    testing::train_steps(*model, sharded, world, kTask, {.steps = 3});
    const Counters after = sharded.counters();
    for (std::size_t u = 0; u < after.units.size(); ++u) {
      const std::int64_t gathers = after.units[u].all_gathers - before.units[u].all_gathers;
      EXPECT_EQ(gathers, after.units[u].name == "blocks.1" ? 3 : 6) << after.units[u].name;
    }
  });
}

}  // namespace
}  // namespace fullshard::shard
