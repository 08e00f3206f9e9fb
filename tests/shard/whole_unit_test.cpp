#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "support/equality.h"

// Whole units owned by one rank each. Equality over models, strategies and worlds of 1 to 5 ranks
// is in model_grid_test; here is who owns what, and what a rank without any part of a unit can do.

namespace fullshard::shard {
namespace {

using ::testing::HasSubstr;

ParameterRule whole(std::string pattern) {
  return {.pattern = std::move(pattern), .atom = layout::Atom::kUnit};
}

const testing::Problem kTask = testing::gpt_problem(17, 6, 3, /*tied=*/true);

// Bytes of parameters that each rank owns.
std::vector<std::int64_t> shard_bytes(const ShardedModule& sharded, comm::World& world) {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(world.size()));
  const std::int64_t mine = sharded.counters().parameter_shard_bytes;
  world.group()
      .all_gather({&mine, 1, base::DType::kInt64},
                  {bytes.data(), world.size(), base::DType::kInt64}, {}, {})
      .wait();
  return bytes;
}

// Of every rank, whether it owns all, or nothing, of each layer of an MLP.
void expect_all_or_nothing(const ShardedModule& sharded) {
  std::map<std::string, std::vector<bool>> owned;  // by layer
  for (const auto& shard : sharded.named_parameters()) {
    const std::int64_t numel = at::empty(shard.global_shape, at::kMeta).numel();
    EXPECT_TRUE(shard.begin == shard.end || shard.end - shard.begin == numel) << shard.name;
    owned[shard.name.substr(0, shard.name.rfind('.'))].push_back(shard.begin < shard.end);
  }
  for (const auto& [layer, parts] : owned) {
    EXPECT_EQ(std::count(parts.begin(), parts.end(), parts.front()),
              static_cast<std::ptrdiff_t>(parts.size()))
        << layer;
  }
}

TEST(WholeUnit, BytesAreBalancedLargestFirst) {
  // Four layers of 33,280 bytes and two of half of that.
  const auto task = testing::mlp_problem({64, 64, 64, 64, 64, 32, 64});
  for (const int ranks : {1, 2, 3, 4, 5}) {
    comm::run_as_threads(ranks, [&](comm::World& world) {
      const auto sharded = fully_shard(task.build(), world.mesh(), {.rules = {whole("*")}});
      expect_all_or_nothing(sharded);
      const std::vector<std::int64_t> bytes = shard_bytes(sharded, world);
      const std::int64_t total = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
      EXPECT_LE(*std::max_element(bytes.begin(), bytes.end()), total / ranks + 64 * 65 * 8);
    });
  }
}

std::string table_at(int ranks, const FullyShardOptions& sharding) {
  std::string table;
  const auto task = testing::mlp_problem({8, 8, 4, 2});
  comm::run_as_threads(ranks, [&](comm::World& world) {
    const std::string mine = fully_shard(task.build(), world.mesh(), sharding).describe();
    if (world.rank() == 0) table = mine;
  });
  return table;
}

TEST(WholeUnit, TheTableNamesTheOwner) {
  const std::string table = table_at(2, {.rules = {whole("*")}});
  EXPECT_THAT(table, HasSubstr("layers.0  FULL_SHARD  float64  576 B  whole on rank 0\n"
                               "  layers.0.weight  [8, 8]  0:[0,64)\n"));
  EXPECT_THAT(table, HasSubstr("layers.1  FULL_SHARD  float64  320 B  whole on rank 1\n"));
  EXPECT_THAT(table, HasSubstr("  layers.2.bias  [2]  1:[0,2)\n"));
}

TEST(WholeUnit, WhatIsCutCountsForTheBalance) {
  // Rank 0 has the weight of layer 0, which is more than all else.
  const std::string table =
      table_at(2, {.rules = {{.pattern = "layers.0.*", .atom = layout::Atom::kParameter},
                             whole("layers.1.*"),
                             whole("layers.2.*")}});
  EXPECT_THAT(table, HasSubstr("layers.0.weight  [8, 8]  0:[0,64)"));
  EXPECT_THAT(table, HasSubstr("layers.0.bias  [8]  1:[0,8)"));
  EXPECT_THAT(table, HasSubstr("layers.1  FULL_SHARD  float64  320 B  whole on rank 1\n"));
}

TEST(WholeUnit, PartsOfADividedUnitHaveOneOwner) {
  const std::string table = table_at(
      3, {.rules = {{.pattern = "*weight", .atom = layout::Atom::kUnit, .dtype = at::kFloat},
                    whole("*bias")}});
  for (int layer = 0; layer < 3; ++layer) {
    const std::string owner = std::to_string(layer);
    for (const std::string dtype : {"Float", "Double"}) {
      const auto line = table.find("layers." + owner + " [" + dtype + ", FULL_SHARD, whole]");
      ASSERT_NE(line, std::string::npos) << table;
      EXPECT_THAT(table.substr(line, table.find('\n', line) - line),
                  ::testing::EndsWith("whole on rank " + owner));
    }
  }
}

TEST(WholeUnit, WithoutShardingTheRuleHasNoEffect) {
  EXPECT_THAT(
      table_at(2, {.sharding_strategy = ShardingStrategy::NO_SHARD, .rules = {whole("*weight")}}),
      HasSubstr("layers.0  NO_SHARD  float64  576 B\n"));
}

TEST(WholeUnit, WeightsAndOtherGranularitiesBesideIt) {
  testing::expect_equal_training(
      kTask, {.ranks = 3, .sharding = {.rules = {whole("*")}, .shard_weights = {2, 0, 1}}});
  testing::expect_equal_training(kTask, {.ranks = 3, .sharding = {.rules = {whole("blocks.*")}}});
  testing::expect_equal_training(
      kTask,
      {.ranks = 3,
       .sharding = {.rules = {whole("*weight"),
                              {.pattern = "blocks.1.*", .strategy = ShardingStrategy::NO_SHARD}}}});
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto sharded =
        fully_shard(kTask.build(), world.mesh(), {.rules = {whole("*")}, .shard_weights = {0, 1}});
    EXPECT_EQ(shard_bytes(sharded, world)[0], 0);
  });
}

TEST(WholeUnit, OverReplicas) {
  const FullyShardOptions hybrid{.sharding_strategy = ShardingStrategy::HYBRID_SHARD,
                                 .rules = {whole("*")}};
  testing::expect_equal_training(kTask, {.ranks = 4, .sharding = hybrid, .mesh = {.replicate = 2}});
}

TEST(WholeUnit, WithoutSharedMemory) {
  for (const int ranks : {2, 3}) {
    for (const auto strategy : {ShardingStrategy::FULL_SHARD, ShardingStrategy::SHARD_GRAD_OP}) {
      testing::expect_equal_training(
          kTask, {.ranks = ranks,
                  .sharding = {.sharding_strategy = strategy, .rules = {whole("*")}},
                  .over_gloo = true});
    }
  }
}

TEST(WholeUnit, StateIsSavedAndLoaded) {
  comm::run_as_threads(3, [&](comm::World& world) {
    const auto source = fully_shard(kTask.build(), world.mesh(), {.rules = {whole("*")}});
    StateDict state = source.full_state_dict();
    testing::expect_bitwise_equal(state, testing::parameters_of(*kTask.build()));
    for (auto& [name, value] : state) value = value * 2;
    source.load_state_dict(state);
    testing::expect_bitwise_equal(source.full_state_dict(), state);
  });
}

}  // namespace
}  // namespace fullshard::shard
