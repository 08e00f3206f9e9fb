#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "support/equality.h"
#include "support/forwarding_group.h"
#include "support/networks.h"

// Units that share a reduction, where ranks do not all share memory.

namespace fullshard::shard {
namespace {

using ::testing::ElementsAre;
using testing::Problem;

constexpr std::int64_t kAnything = std::int64_t{1} << 30;

// Counts the collectives that reduce gradients in double precision.
class ReductionCount final : public testing::ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;

  std::int64_t reductions = 0;

  comm::Work reduce_scatter(comm::ConstBuffer all, comm::Buffer mine, comm::ReduceOp op,
                            std::span<const std::int64_t> counts, const comm::OpTag& tag) override {
    ++reductions;
    return ForwardingGroup::reduce_scatter(all, mine, op, counts, tag);
  }
  comm::Work all_reduce(comm::Buffer inout, comm::ReduceOp op, const comm::OpTag& tag) override {
    if (inout.dtype == base::DType::kFloat64) ++reductions;
    return ForwardingGroup::all_reduce(inout, op, tag);
  }
};

// Five equal units of 192 bytes, used one after the other.
struct Ladder : testing::Model {
  Ladder() {
    for (int i = 0; i < 5; ++i) layers->push_back(torch::nn::Linear(4, 4));
    register_module("layers", layers);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    at::Tensor h = x;
    for (const auto& layer : *layers) {
      h = torch::tanh(layer->as<torch::nn::Linear>()->forward(h));
      h.register_hook([this](const at::Tensor&) { before_backward(); });
    }
    return (h - y).pow(2).mean();
  }
  torch::nn::ModuleList layers;
  std::function<void()> before_backward = [] {};  // of each layer
};

constexpr std::int64_t kUnit = 192;
const Problem kLadder = testing::problem_of<Ladder>(4, 4);

FullyShardOptions ladder_in_buckets(std::int64_t bytes) {
  return {.auto_wrap_policy = wrap_named({"layers.*"}), .reduce_bucket_bytes = bytes};
}

// How many reductions had begun when each layer's backward began, the last layer first.
std::vector<std::int64_t> reductions_by_layer(std::int64_t bucket_bytes) {
  std::vector<std::int64_t> seen;
  testing::run_over_gloo(2, [&](comm::World& world) {
    const auto model = kLadder.build();
    comm::Mesh mesh = world.mesh();
    const auto group = std::make_shared<ReductionCount>(mesh.shard);
    mesh.shard = group;
    const auto sharded = fully_shard(model, mesh, ladder_in_buckets(bucket_bytes));
    for (const UnitCounters& unit : sharded.counters().units) ASSERT_EQ(unit.bytes, kUnit);
    if (world.rank() == 0) {
      static_cast<Ladder&>(*model).before_backward = [&] { seen.push_back(group->reductions); };
    }
    testing::train_steps(*model, sharded, world, kLadder, {.steps = 1});
    if (world.rank() == 0) seen.push_back(group->reductions);
  });
  return seen;
}

TEST(ReduceBuckets, StartWhenTheyAreFull) {
  EXPECT_THAT(reductions_by_layer(0), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(reductions_by_layer(kUnit - 1), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(reductions_by_layer(kUnit), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(reductions_by_layer(2 * kUnit), ElementsAre(0, 0, 1, 1, 2, 3));
  EXPECT_THAT(reductions_by_layer(2 * kUnit + 1), ElementsAre(0, 0, 0, 1, 1, 3));
  EXPECT_THAT(reductions_by_layer(kAnything), ElementsAre(0, 0, 0, 0, 0, 1));
}

struct OneStep {
  std::int64_t collectives;  // as counted
  std::int64_t calls;        // as made between hosts
  std::int64_t bytes;
  std::int64_t peak;  // of unreduced gradients
};

OneStep step_between_hosts(const FullyShardOptions& sharding) {
  OneStep step{};
  testing::run_on_hosts(2, 2, [&](comm::World& world) {
    const auto model = kLadder.build();
    comm::Mesh mesh = world.mesh({.replicate = 2});
    const auto between = std::make_shared<ReductionCount>(mesh.replicate);
    mesh.replicate = between;
    const auto sharded = fully_shard(model, mesh, sharding);
    testing::train_steps(*model, sharded, world, kLadder, {.steps = 2});
    const std::int64_t calls = between->reductions;
    const Counters before = sharded.counters();
    testing::train_steps(*model, sharded, world, kLadder, {.steps = 1});
    const Counters after = sharded.counters();
    EXPECT_EQ(after.reduce_scatters - before.reduce_scatters, 5);
    EXPECT_EQ(after.unreduced_gradient_bytes, 0);
    if (world.rank() != 0) return;
    step = {.collectives = after.reduce_scatter_collectives - before.reduce_scatter_collectives,
            .calls = between->reductions - calls,
            .bytes = after.reduce_scatter_bytes - before.reduce_scatter_bytes,
            .peak = after.peak_unreduced_gradient_bytes};
  });
  return step;
}

TEST(ReduceBuckets, MakeFewerCollectivesOfTheSameBytesBetweenHosts) {
  for (const bool divided : {false, true}) {
    FullyShardOptions sharding = ladder_in_buckets(0);
    sharding.shard_optimizer_over_replicas = divided;
    const std::int64_t bytes = step_between_hosts(sharding).bytes;
    for (const auto& [bucket, expected] :
         {std::pair<std::int64_t, std::int64_t>{0, 5}, {2 * kUnit, 3}, {kAnything, 1}}) {
      SCOPED_TRACE(::testing::Message() << "bucket " << bucket << " divided " << divided);
      sharding.reduce_bucket_bytes = bucket;
      const OneStep step = step_between_hosts(sharding);
      EXPECT_EQ(step.collectives, expected);
      EXPECT_EQ(step.calls, expected);
      EXPECT_EQ(step.bytes, bytes);
      EXPECT_GT(step.peak, 0);
      EXPECT_LE(step.peak, 5 * kUnit);
    }
  }
}

TEST(ReduceBuckets, HoldTheirUnitsGradientsUntilTheyAreReduced) {
  testing::run_over_gloo(2, [&](comm::World& world) {
    const auto model = kLadder.build();
    const auto sharded = fully_shard(model, world.mesh(), ladder_in_buckets(kAnything));
    testing::train_steps(*model, sharded, world, kLadder, {.steps = 2});
    EXPECT_EQ(sharded.counters().peak_unreduced_gradient_bytes, 5 * kUnit);
    EXPECT_EQ(sharded.counters().unreduced_gradient_bytes, 0);
  });
}

// Small parameters are replicated, and one unit is not cut.
TEST(ReduceBuckets, EqualUnshardedTrainingBetweenHosts) {
  const Problem task = testing::gpt_problem(17, 6, 3, /*tied=*/true);
  const testing::TrainOptions options{.steps = 3, .max_norm = 0.5};
  const StateDict expected = testing::train_reference(task, options);
  const std::vector<ParameterRule> rules = {
      {.pattern = "*.bias", .strategy = ShardingStrategy::NO_SHARD},
      {.pattern = "blocks.1.*", .atom = layout::Atom::kUnit},
      {.pattern = "*up.weight", .atom = layout::Atom::kRow, .group = 5}};
  for (const bool divided : {false, true}) {
    for (const bool dynamic : {false, true}) {
      for (const std::int64_t bucket : {std::int64_t{0}, std::int64_t{2048}, kAnything}) {
        SCOPED_TRACE(::testing::Message() << bucket << " " << divided << " " << dynamic);
        const FullyShardOptions sharding{.rules = rules,
                                         .shard_weights = {0.1, 0.3},
                                         .dynamic = dynamic,
                                         .reduce_bucket_bytes = bucket,
                                         .shard_optimizer_over_replicas = divided};
        testing::run_on_hosts(2, 2, [&](comm::World& world) {
          testing::expect_match(
              testing::train_sharded(task, world, sharding, options, {.replicate = 2}), expected,
              1e-10);
        });
      }
    }
  }
}

// A bucket changes where elements lie on their way, not what is added to what.
TEST(ReduceBuckets, KeepEveryBitBetweenHosts) {
  const Problem task = testing::gpt_problem(17, 6, 3, /*tied=*/true);
  const testing::TrainOptions options{.steps = 3};
  testing::run_on_hosts(2, 2, [&](comm::World& world) {
    const auto train = [&](std::int64_t bucket) {
      return testing::train_sharded(task, world, {.reduce_bucket_bytes = bucket}, options,
                                    {.replicate = 2});
    };
    const StateDict alone = train(0);
    testing::expect_bitwise_equal(train(2048), alone);
    testing::expect_bitwise_equal(train(kAnything), alone);
  });
}

}  // namespace
}  // namespace fullshard::shard
