#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "support/equality.h"
#include "support/forwarding_group.h"
#include "support/networks.h"

// Gathers that begin before their units are used, outside of schedules: of units that stay for
// good, of passes without gradients, and with `dynamic`.

namespace fullshard::shard {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t kAnything = std::int64_t{1} << 30;

class GatherCount final : public testing::ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;

  std::int64_t gathers = 0;

  comm::Work all_gather(comm::ConstBuffer mine, comm::Buffer all,
                        std::span<const std::int64_t> counts, const comm::OpTag& tag) override {
    ++gathers;
    return ForwardingGroup::all_gather(mine, all, counts, tag);
  }
};

// Four equal units of 192 bytes, used one after the other.
struct Ladder : testing::Model {
  Ladder() {
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(4, 4));
    register_module("layers", layers);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    at::Tensor h = x;
    for (const std::size_t i : order) {
      h = torch::tanh(layers[i]->as<torch::nn::Linear>()->forward(h));
      after_forward();
    }
    return (h - y).pow(2).mean();
  }
  torch::nn::ModuleList layers;
  std::vector<std::size_t> order = {0, 1, 2, 3};
  std::function<void()> after_forward = [] {};  // of each layer
};

constexpr std::int64_t kUnit = 192;
const testing::Problem kLadder = testing::problem_of<Ladder>(4, 4);

FullyShardOptions ladder(FullyShardOptions sharding) {
  sharding.auto_wrap_policy = wrap_named({"layers.*"});
  return sharding;
}

// A rank's model, and what it gathers.
struct Rank {
  Rank(comm::World& of_world, const FullyShardOptions& sharding) : world(of_world) {
    comm::Mesh mesh = world.mesh();
    group = std::make_shared<GatherCount>(mesh.shard);
    mesh.shard = group;
    sharded.emplace(fully_shard(model, mesh, ladder(sharding)));
    optimizer = testing::stock_optimizer(testing::Optimizer::kSgd, sharded->parameters());
  }

  at::Tensor loss() {
    const auto rows = testing::rows_of_rank(kLadder.batch(0), world.rank(), world.size());
    return model->loss(rows.x, rows.y);
  }

  void train(int steps) {
    for (int step = 0; step < steps; ++step) {
      optimizer->zero_grad();
      loss().backward();
      optimizer->step();
    }
  }

  void evaluate(int passes) {
    const at::NoGradGuard no_grad;
    for (int pass = 0; pass < passes; ++pass) loss();
  }

  // How many gathers have begun at the end of each layer's forward in `pass`, and at its end.
  std::vector<std::int64_t> gathers_by_layer(const std::function<void()>& pass) {
    const std::int64_t before = group->gathers;
    std::vector<std::int64_t> seen;
    model->after_forward = [&] { seen.push_back(group->gathers - before); };
    pass();
    model->after_forward = [] {};
    seen.push_back(group->gathers - before);
    return seen;
  }

  comm::World& world;
  std::shared_ptr<Ladder> model = std::static_pointer_cast<Ladder>(kLadder.build());
  std::shared_ptr<GatherCount> group;
  std::optional<ShardedModule> sharded;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

using Body = std::function<void(Rank&)>;

void on_two_ranks(const FullyShardOptions& sharding, const Body& body) {
  testing::run_over_gloo(2, [&](comm::World& world) {
    Rank rank(world, sharding);
    body(rank);
  });
}

FullyShardOptions kept(FullyShardOptions sharding = {}) {
  sharding.sharding_strategy = ShardingStrategy::SHARD_OPTIMIZER_ONLY;
  return sharding;
}

TEST(GatherAhead, OfUnitsThatStayForGood) {
  const auto by_layer = [](Rank& rank) {
    rank.train(2);
    return rank.gathers_by_layer([&] { rank.train(1); });
  };
  on_two_ranks(kept(), [&](Rank& rank) {
    EXPECT_THAT(rank.gathers_by_layer([&] { rank.train(1); }), ElementsAre(1, 2, 3, 4, 4));
    EXPECT_THAT(by_layer(rank), ElementsAre(2, 3, 4, 4, 4));
    for (const UnitCounters& unit : rank.sharded->counters().units) {
      EXPECT_EQ(unit.all_gathers, 4);  // one an update
    }
  });
  on_two_ranks(kept({.forward_prefetch = 0}),
               [&](Rank& rank) { EXPECT_THAT(by_layer(rank), ElementsAre(1, 2, 3, 4, 4)); });
  on_two_ranks(kept({.forward_prefetch = 2}),
               [&](Rank& rank) { EXPECT_THAT(by_layer(rank), ElementsAre(3, 4, 4, 4, 4)); });
  on_two_ranks(kept({.limit_all_gathers = false}),
               [&](Rank& rank) { EXPECT_THAT(by_layer(rank), ElementsAre(4, 4, 4, 4, 4)); });
  on_two_ranks(kept({.gather_bucket_bytes = 2 * kUnit}), [&](Rank& rank) {
    EXPECT_THAT(by_layer(rank), ElementsAre(1, 2, 2, 2, 2));
    EXPECT_EQ(rank.sharded->counters().all_gathers, 4 * 3);
  });
  on_two_ranks(kept({.gather_bucket_bytes = kAnything}),
               [&](Rank& rank) { EXPECT_THAT(by_layer(rank), ElementsAre(1, 1, 1, 1, 1)); });
}

TEST(GatherAhead, UnitsThatStayMayChangeTheirOrder) {
  on_two_ranks(kept(), [](Rank& rank) {
    rank.train(2);
    rank.model->order = {2, 0};
    rank.train(3);
    EXPECT_THAT(rank.gathers_by_layer([&] { rank.train(1); }), ElementsAre(2, 2, 2));
    rank.model->order = {3, 2, 1, 0};
    rank.train(2);
  });
}

TEST(GatherAhead, InPassesWithoutGradients) {
  const auto by_layer = [](Rank& rank) {
    rank.train(1);
    rank.evaluate(1);
    rank.sharded->release();
    return rank.gathers_by_layer([&] { rank.evaluate(1); });
  };
  on_two_ranks({}, [&](Rank& rank) {
    EXPECT_THAT(by_layer(rank), ElementsAre(2, 3, 4, 4, 4));
    rank.sharded->release();
    rank.sharded->reset_peak();
    rank.evaluate(3);
    EXPECT_EQ(rank.sharded->counters().peak_unsharded_bytes, 2 * kUnit);
    rank.train(1);
    EXPECT_EQ(rank.sharded->counters().live_unsharded_bytes, 0);
  });
  on_two_ranks({.forward_prefetch = 0},
               [&](Rank& rank) { EXPECT_THAT(by_layer(rank), ElementsAre(1, 2, 3, 4, 4)); });
  on_two_ranks({.forward_prefetch = 3},
               [&](Rank& rank) { EXPECT_THAT(by_layer(rank), ElementsAre(4, 4, 4, 4, 4)); });
  on_two_ranks({.max_unsharded_bytes = 2 * kUnit, .forward_prefetch = 3}, [&](Rank& rank) {
    EXPECT_THAT(by_layer(rank), ElementsAre(2, 3, 4, 4, 4));
    EXPECT_LE(rank.sharded->counters().peak_unsharded_bytes, 2 * kUnit);
  });
  on_two_ranks({.max_unsharded_bytes = kUnit},
               [&](Rank& rank) { EXPECT_THAT(by_layer(rank), ElementsAre(1, 2, 3, 4, 4)); });
  on_two_ranks({.forward_prefetch = 3, .gather_bucket_bytes = 2 * kUnit},
               [&](Rank& rank) { EXPECT_THAT(by_layer(rank), ElementsAre(2, 2, 2, 2, 2)); });
}

TEST(GatherAhead, APassWithoutGradientsMayGoAnotherWay) {
  on_two_ranks({.forward_prefetch = 2}, [&](Rank& rank) {
    const at::NoGradGuard no_grad;
    for (const auto& order : std::vector<std::vector<std::size_t>>{
             {0, 1, 2, 3}, {0, 2, 1}, {3, 3, 0}, {1}, {0, 1, 0, 1, 2}, {2, 0}}) {
      rank.model->order = order;
      const auto expected = [&] {
        const auto alone = std::static_pointer_cast<Ladder>(kLadder.build());
        alone->order = order;
        const auto rows =
            testing::rows_of_rank(kLadder.batch(0), rank.world.rank(), rank.world.size());
        return alone->loss(rows.x, rows.y);
      }();
      EXPECT_TRUE(at::equal(rank.loss(), expected));
      EXPECT_LE(rank.sharded->counters().live_unsharded_bytes, 3 * kUnit);
    }
  });
}

// All begin at the first use; buckets take several.
TEST(GatherAhead, WithDynamic) {
  for (const auto& [bucket, collectives] :
       {std::pair<std::int64_t, std::int64_t>{0, 4}, {2 * kUnit, 2}, {kAnything, 1}}) {
    on_two_ranks({.dynamic = true, .gather_bucket_bytes = bucket}, [n = collectives](Rank& rank) {
      rank.train(2);
      EXPECT_THAT(rank.gathers_by_layer([&] { rank.train(1); }), ElementsAre(n, n, n, n, n));
    });
  }
}

TEST(GatherAhead, KeepsEveryBit) {
  const testing::Problem task = testing::gpt_problem(17, 6, 3, /*tied=*/true);
  const testing::TrainOptions options{.steps = 4, .max_norm = 0.5};
  const std::vector<ParameterRule> rules = {
      {.pattern = "blocks.1.*", .strategy = ShardingStrategy::SHARD_OPTIMIZER_ONLY},
      {.pattern = "*norm*", .strategy = ShardingStrategy::SHARD_OPTIMIZER_ONLY}};
  testing::run_over_gloo(2, [&](comm::World& world) {
    const StateDict expected =
        testing::train_sharded(task, world, {.rules = rules, .forward_prefetch = 0}, options);
    for (const bool dynamic : {false, true}) {
      for (const std::int64_t bucket : {std::int64_t{0}, std::int64_t{2048}}) {
        for (const int depth : {1, 3}) {
          const FullyShardOptions sharding{.rules = rules,
                                           .dynamic = dynamic,
                                           .forward_prefetch = depth,
                                           .gather_bucket_bytes = bucket};
          testing::expect_bitwise_equal(testing::train_sharded(task, world, sharding, options),
                                        expected);
        }
      }
    }
  });
}

TEST(UpdateGathers, AreCountedWithTheirBytes) {
  testing::run_both_ways(4, [](comm::World& world) {
    for (const bool divided : {false, true}) {
      const auto model = kLadder.build();
      const auto sharded = fully_shard(model, world.mesh({.replicate = 2}),
                                       ladder({.shard_optimizer_over_replicas = divided}));
      testing::train_steps(*model, sharded, world, kLadder, {.steps = 2});
      const Counters before = sharded.counters();
      testing::train_steps(*model, sharded, world, kLadder, {.steps = 3});
      const Counters after = sharded.counters();
      EXPECT_EQ(after.update_gathers - before.update_gathers, divided ? 3 * 4 : 0);
      std::int64_t bytes = after.update_gather_bytes - before.update_gather_bytes;
      world.group().all_reduce({&bytes, 1, base::DType::kInt64}, comm::ReduceOp::kSum, {}).wait();
      EXPECT_EQ(bytes, divided ? 3 * 4 * kUnit : 0);  // each replica has half from the other
    }
  });
}

}  // namespace
}  // namespace fullshard::shard
