#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <tuple>

#include "fullshard/base/error.h"
#include "support/counted_group.h"
#include "support/equality.h"
#include "support/networks.h"
#include "support/slow_group.h"

// What hides or saves communication where ranks do not share memory.

namespace fullshard::shard {
namespace {

using std::chrono::milliseconds;
using testing::CountedGroup;
using testing::Problem;
using testing::SlowGroup;

constexpr std::int64_t kAnything = std::int64_t{1} << 30;

Problem gpt() { return testing::gpt_problem(17, 6, 3, /*tied=*/true); }

using Point = std::tuple<int, int, std::int64_t, std::int64_t>;
class NetworkSchedule : public ::testing::TestWithParam<Point> {};
INSTANTIATE_TEST_SUITE_P(Depths, NetworkSchedule,
                         ::testing::Values(Point{1, 1, 0, 0}, Point{2, 0, 0, 2048},
                                           Point{0, 2, 2048, 0}, Point{2, 2, 2048, 2048},
                                           Point{1, 1, kAnything, kAnything}));

TEST_P(NetworkSchedule, KeepsEveryBit) {
  const auto [forward, backward, gather_bytes, reduce_bytes] = GetParam();
  const Problem task = gpt();
  const testing::TrainOptions options{.steps = 4, .max_norm = 0.5};
  const FullyShardOptions scheduled{.forward_prefetch = forward,
                                    .backward_prefetch = backward,
                                    .gather_bucket_bytes = gather_bytes,
                                    .reduce_bucket_bytes = reduce_bytes};
  testing::run_over_gloo(2, [&](comm::World& world) {
    const FullyShardOptions plain{.forward_prefetch = 0, .backward_prefetch = 0};
    const StateDict expected = testing::train_sharded(task, world, plain, options);
    testing::expect_bitwise_equal(testing::train_sharded(task, world, scheduled, options),
                                  expected);
  });
}

// Small parameters are replicated; buckets hold units of one kind.
TEST(NetworkBuckets, EqualUnshardedTraining) {
  const Problem task = gpt();
  const testing::TrainOptions options{.steps = 4};
  const StateDict expected = testing::train_reference(task, options);
  const std::vector<ParameterRule> rules = {
      {.pattern = "*.bias", .strategy = ShardingStrategy::NO_SHARD}};
  for (const int ranks : {1, 3}) {
    testing::run_over_gloo(ranks, [&](comm::World& world) {
      const FullyShardOptions sharding{
          .rules = rules,
          .shard_weights = ranks == 3 ? std::vector<double>{2, 0, 1} : std::vector<double>{},
          .gather_bucket_bytes = kAnything,
          .reduce_bucket_bytes = kAnything};
      testing::expect_match(testing::train_sharded(task, world, sharding, options), expected,
                            1e-10);
    });
  }
}

TEST(NetworkBuckets, MakeFewerCollectives) {
  const Problem task = testing::mlp_problem({7, 13, 13, 5});
  testing::run_over_gloo(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto group = std::make_shared<CountedGroup>(world.mesh().shard);
    comm::Mesh mesh = world.mesh();
    mesh.shard = group;
    const auto sharded = fully_shard(
        model, mesh, {.gather_bucket_bytes = kAnything, .reduce_bucket_bytes = kAnything});
    testing::train_steps(*model, sharded, world, task, {.steps = 3});
    const Counters before = sharded.counters();
    testing::train_steps(*model, sharded, world, task, {.steps = 1});
    const Counters after = sharded.counters();
    EXPECT_EQ(after.reduce_scatters - before.reduce_scatters,
              static_cast<std::int64_t>(after.units.size()));
    EXPECT_EQ(after.reduce_scatter_collectives - before.reduce_scatter_collectives, 1);
    EXPECT_EQ(after.all_gather_collectives - before.all_gather_collectives, 2);
    EXPECT_EQ(after.unreduced_gradient_bytes, 0);
  });
}

TEST(ReshardAfterForward, GathersAmongNeighboursInBackward) {
  const Problem task = gpt();
  const testing::TrainOptions options{.steps = 3};
  const StateDict expected = testing::train_reference(task, options);
  for (const std::int64_t bucket : {std::int64_t{0}, kAnything}) {
    testing::run_over_gloo(4, [&](comm::World& world) {
      const auto model = task.build();
      const auto group = std::make_shared<CountedGroup>(world.mesh().shard);
      comm::Mesh mesh = world.mesh();
      mesh.shard = group;
      const auto sharded =
          fully_shard(model, mesh, {.gather_bucket_bytes = bucket, .reshard_after_forward = 2});
      testing::train_steps(*model, sharded, world, task, options);
      testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
      group->counts = {};
      std::int64_t whole = 0;
      for (const UnitCounters& unit : sharded.counters().units) whole += unit.bytes;
      const auto rows = testing::rows_of_rank(task.batch(0), world.rank(), world.size());
      const at::Tensor loss = model->loss(rows.x, rows.y);
      EXPECT_GT(sharded.counters().resharded_bytes, 0);
      EXPECT_LE(sharded.counters().resharded_bytes, whole);
      loss.backward();
      EXPECT_EQ(sharded.counters().resharded_bytes, 0);
      if (bucket == 0) EXPECT_EQ(group->counts.all_gather, whole);  // of all ranks: forward only
    });
  }
}

TEST(ReshardAfterForward, OfOneRankKeepsUnitsUntilTheirBackward) {
  const Problem task = gpt();
  const StateDict expected = testing::train_reference(task);
  testing::run_both_ways(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh(), {.reshard_after_forward = 1});
    testing::train_steps(*model, sharded, world, task, {});
    const Counters counters = sharded.counters();
    for (const UnitCounters& unit : counters.units) EXPECT_LE(unit.all_gathers, 3 + 1);
    testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
  });
}

TEST(ReshardAfterForward, HasToDivideTheShardGroup) {
  comm::run_as_threads(4, [](comm::World& world) {
    try {
      fully_shard(gpt().build(), world.mesh(), {.reshard_after_forward = 3});
      FAIL() << "3 of 4 ranks were accepted";
    } catch (const base::Error& error) {
      EXPECT_EQ(error.code(), base::ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("reshard_after_forward is 3"));
    }
  });
}

// Compressed to a type that loses nothing, everything stays as it was.
TEST(CommunicationHook, ReplacesTheReduction) {
  const Problem task = gpt();
  const testing::TrainOptions options{.steps = 3, .max_norm = 0.5};
  const StateDict expected = testing::train_reference(task, options);
  const FullyShardOptions sharding{
      .rules = {{.pattern = "*.bias", .strategy = ShardingStrategy::NO_SHARD}},
      .reduce_bucket_bytes = 2048,
      .gradient_predivide_factor = 3,
      .communication_hook = compress_gradients_to(at::kDouble)};
  testing::run_both_ways(3, [&](comm::World& world) {
    testing::expect_match(testing::train_sharded(task, world, sharding, options), expected, 1e-10);
  });
  testing::run_on_hosts(2, 2, [&](comm::World& world) {
    testing::expect_match(testing::train_sharded(task, world, sharding, options, {.replicate = 2}),
                          expected, 1e-10);
  });
}

TEST(CommunicationHook, CompressionRoundsGradients) {
  const Problem task = testing::mlp_problem({7, 13, 5}, at::kFloat);
  const auto reference = task.build();
  reference->loss(task.batch(0).x, task.batch(0).y).backward();
  testing::run_both_ways(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh(),
                                     {.communication_hook = compress_gradients_to(at::kBFloat16)});
    const auto rows = testing::rows_of_rank(task.batch(0), world.rank(), world.size());
    model->loss(rows.x, rows.y).backward();
    double largest = 0;
    const auto& shards = sharded.named_parameters();
    for (const state::ShardedTensor& shard : shards) {
      const at::Tensor whole = reference->named_parameters()[shard.name].grad().flatten();
      const at::Tensor own = whole.slice(0, shard.begin, shard.end);
      const at::Tensor difference = (shard.tensor.grad() - own).abs();
      if (own.numel() == 0) continue;
      EXPECT_LE(difference.max().item<double>(), 0.01 * whole.abs().max().item<double>());
      largest = std::max(largest, difference.max().item<double>());
    }
    EXPECT_GT(largest, 0) << "nothing was rounded";
  });
  EXPECT_THROW(compress_gradients_to(at::kInt), base::Error);
}

TEST(CommunicationHook, ItsErrorFailsTheBackwardPass) {
  const Problem task = testing::mlp_problem({7, 13, 5});
  testing::run_over_gloo(2, [&](comm::World& world) {
    const auto model = task.build();
    const CommunicationHook fails = [](const UnitGradients& gradients) -> comm::Work {
      throw std::runtime_error("no room to compress " + gradients.unit);
    };
    const auto sharded = fully_shard(model, world.mesh(), {.communication_hook = fails});
    const auto rows = testing::rows_of_rank(task.batch(0), world.rank(), world.size());
    EXPECT_THROW(model->loss(rows.x, rows.y).backward(), std::runtime_error);
  });
}

TEST(GradientPredivideFactor, ChangesNothingInDoublePrecision) {
  const Problem task = gpt();
  const StateDict expected = testing::train_reference(task);
  testing::run_both_ways(2, [&](comm::World& world) {
    const FullyShardOptions sharding{.gradient_predivide_factor = 4};
    testing::expect_match(testing::train_sharded(task, world, sharding), expected, 1e-10);
  });
  comm::run_as_threads(1, [](comm::World& world) {
    EXPECT_THROW(fully_shard(gpt().build(), world.mesh(), {.gradient_predivide_factor = 0}),
                 base::Error);
  });
}

// Computation that takes as long as one is told, whatever else the machine does.
struct Sleep : torch::autograd::Function<Sleep> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    std::this_thread::sleep_for(milliseconds(25));
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    std::this_thread::sleep_for(milliseconds(50));
    return gradients;
  }
};

struct Sleeper : torch::nn::Module {
  Sleeper() { linear->to(at::kDouble); }
  at::Tensor forward(const at::Tensor& x) { return Sleep::apply(linear(x)); }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
};

struct SleepyModel : testing::Model {
  SleepyModel() {
    for (int i = 0; i < 8; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), std::make_shared<Sleeper>()));
    }
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor&) override {
    at::Tensor h = x;
    for (const auto& layer : layers) h = layer->forward(h);
    return h.mean();
  }
  std::vector<std::shared_ptr<Sleeper>> layers;
};

double seconds_of_a_step(SleepyModel& model) {
  const auto begin = std::chrono::steady_clock::now();
  model.loss(at::ones({2, 4}, at::kDouble), {}).backward();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// 8 units, each collective delayed by 20 ms, each layer computing 25 ms forward and 50 ms backward.
double slowdown_with_prefetch(int depth) {
  double slowdown = 0;
  testing::run_over_gloo(2, [&](comm::World& world) {
    SleepyModel alone;
    const double compute = seconds_of_a_step(alone);
    const auto model = std::make_shared<SleepyModel>();
    comm::Mesh mesh = world.mesh();
    mesh.shard = std::make_shared<SlowGroup>(mesh.shard, milliseconds(20));
    const auto sharded = fully_shard(model, mesh,
                                     {.auto_wrap_policy = wrap_modules<Sleeper>(),
                                      .forward_prefetch = depth,
                                      .backward_prefetch = depth});
    seconds_of_a_step(*model);  // is traced
    double step = seconds_of_a_step(*model);
    // The best of several, as other tests may be running beside this one.
    for (int repeat = 0; repeat < 7; ++repeat) step = std::min(step, seconds_of_a_step(*model));
    if (world.rank() == 0) slowdown = step / compute;
  });
  return slowdown;
}

TEST(Overlap, PrefetchHidesSlowLinks) {
  EXPECT_LE(slowdown_with_prefetch(1), 1.1);
  EXPECT_GE(slowdown_with_prefetch(0), 1.3);
}

}  // namespace
}  // namespace fullshard::shard
