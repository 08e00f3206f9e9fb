#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fullshard/base/error.h"
#include "support/equality.h"
#include "support/networks.h"

// Shards in one dtype, computation in another: training equals what that means, written out for one
// process, to the last bit.

namespace fullshard::shard {
namespace {

using ::testing::HasSubstr;
using testing::Problem;
using testing::TrainOptions;

struct Types {
  at::ScalarType compute = at::kBFloat16;
  at::ScalarType shard = at::kFloat;
  at::ScalarType reduce = at::kFloat;
  bool rounds_sums = false;  // sums travel in `reduce`
};

MixedPrecision precision_of(const Types& types) {
  return {.param_dtype = types.compute, .reduce_dtype = types.reduce};
}

std::vector<at::Tensor> gradients_of_rows(const Problem& task,
                                          const std::vector<at::Tensor>& values,
                                          const testing::Batch& rows, at::ScalarType compute) {
  const auto model = task.build();
  model->to(compute);
  const std::vector<at::Tensor> parameters = testing::unique_parameters(*model);
  {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters.size(); ++i) at::Tensor(parameters[i]).copy_(values[i]);
  }
  const at::Tensor x = rows.x.is_floating_point() ? rows.x.to(compute) : rows.x;
  model->loss(x, rows.y).backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  return gradients;
}

// In the order of the ranks, in fp32 or better.
at::Tensor mean_of(const std::vector<at::Tensor>& gradients, const Types& types) {
  const bool narrow = c10::isReducedFloatingType(gradients.front().scalar_type());
  at::Tensor sum =
      gradients.front().to(narrow ? at::ScalarType::Float : gradients.front().scalar_type());
  for (std::size_t rank = 1; rank < gradients.size(); ++rank) sum = sum + gradients[rank];
  at::Tensor mean = sum / static_cast<double>(gradients.size());
  if (types.rounds_sums) mean = mean.to(types.reduce);
  return mean.to(types.shard);
}

// One process that does what mixed precision means for a number of ranks.
StateDict train_by_hand(const Problem& task, int ranks, const Types& types,
                        const TrainOptions& options) {
  const auto model = task.build();
  const std::vector<at::Tensor> masters = testing::unique_parameters(*model);
  const auto optimizer = testing::stock_optimizer(options.optimizer, masters);
  for (std::int64_t step = 0; step < options.steps; ++step) {
    std::vector<std::vector<at::Tensor>> by_parameter(masters.size());
    for (int rank = 0; rank < ranks; ++rank) {
      const auto rows = testing::rows_of_rank(task.batch(step), rank, ranks);
      const auto gradients = gradients_of_rows(task, masters, rows, types.compute);
      for (std::size_t i = 0; i < masters.size(); ++i) by_parameter[i].push_back(gradients[i]);
    }
    for (std::size_t i = 0; i < masters.size(); ++i) {
      at::Tensor(masters[i]).mutable_grad() = mean_of(by_parameter[i], types);
    }
    optimizer->step();
  }
  return testing::parameters_of(*model);
}

const Problem kMlp = testing::mlp_problem({6, 10, 7, 4}, at::kFloat);
const Problem kGpt = testing::gpt_problem(17, 8, 2, /*tied=*/true, at::kFloat);

class MixedPrecisionStrategy : public ::testing::TestWithParam<ShardingStrategy> {};

TEST_P(MixedPrecisionStrategy, EqualsItsMeaningToTheLastBit) {
  const TrainOptions options{.steps = 4};
  for (const Problem& task : {kMlp, kGpt}) {
    for (const int ranks : {1, 2, 3, 4}) {
      const StateDict expected = train_by_hand(task, ranks, {}, options);
      const FullyShardOptions sharding{.sharding_strategy = GetParam(),
                                       .mixed_precision = precision_of({})};
      comm::run_as_threads(ranks, [&](comm::World& world) {
        testing::expect_bitwise_equal(testing::train_sharded(task, world, sharding, options),
                                      expected);
      });
    }
  }
}

TEST_P(MixedPrecisionStrategy, EqualsItsMeaningOnEveryBackend) {
  const TrainOptions options{.steps = 3, .optimizer = testing::Optimizer::kSgd};
  const StateDict expected = train_by_hand(kGpt, 4, {}, options);
  const FullyShardOptions sharding{.sharding_strategy = GetParam(),
                                   .mixed_precision = precision_of({})};
  testing::run_on_every_backend(4, [&](comm::World& world) {
    testing::expect_bitwise_equal(testing::train_sharded(kGpt, world, sharding, options), expected);
  });
}

INSTANTIATE_TEST_SUITE_P(All, MixedPrecisionStrategy,
                         ::testing::Values(ShardingStrategy::FULL_SHARD,
                                           ShardingStrategy::SHARD_GRAD_OP,
                                           ShardingStrategy::SHARD_OPTIMIZER_ONLY,
                                           ShardingStrategy::NO_SHARD));

TEST(MixedPrecision, ReducesInWhatIsAskedForBetweenHosts) {
  const Types types{.reduce = at::kBFloat16, .rounds_sums = true};
  const TrainOptions options{.steps = 3, .optimizer = testing::Optimizer::kSgd};
  const StateDict expected = train_by_hand(kMlp, 3, types, options);
  for (const std::int64_t bucket : {0, 1 << 20}) {
    const FullyShardOptions sharding{.mixed_precision = {.param_dtype = at::kBFloat16},
                                     .reduce_bucket_bytes = bucket};
    testing::run_over_gloo(3, [&](comm::World& world) {
      testing::expect_bitwise_equal(testing::train_sharded(kMlp, world, sharding, options),
                                    expected);
    });
  }
}

TEST(MixedPrecision, MastersMayBeDoubleAndOnlyReductionsNarrow) {
  const Problem task = testing::mlp_problem({6, 10, 4});
  const TrainOptions options{.steps = 3};
  const Types computes_in_float{.compute = at::kFloat, .shard = at::kDouble, .reduce = at::kFloat};
  const StateDict expected = train_by_hand(task, 2, computes_in_float, options);
  comm::run_as_threads(2, [&](comm::World& world) {
    const FullyShardOptions sharding{.mixed_precision = precision_of(computes_in_float)};
    testing::expect_bitwise_equal(testing::train_sharded(task, world, sharding, options), expected);
  });
  const StateDict exact = testing::train_reference(task, options);
  const FullyShardOptions narrow{.mixed_precision = {.reduce_dtype = at::kFloat}};
  testing::run_on_every_backend(2, [&](comm::World& world) {
    testing::expect_match(testing::train_sharded(task, world, narrow, options), exact, 1e-6);
  });
}

TEST(MixedPrecision, HoldsOnAMeshOfReplicasThatDivideUpdates) {
  const TrainOptions options{.steps = 3, .optimizer = testing::Optimizer::kSgd};
  const StateDict expected = train_by_hand(kGpt, 4, {}, options);
  for (const bool divides : {false, true}) {
    const FullyShardOptions sharding{.sharding_strategy = ShardingStrategy::HYBRID_SHARD,
                                     .mixed_precision = precision_of({}),
                                     .shard_optimizer_over_replicas = divides};
    testing::run_on_hosts(2, 2, [&](comm::World& world) {
      testing::expect_match(
          testing::train_sharded(kGpt, world, sharding, options, {.replicate = 2}), expected, 1e-4);
    });
    comm::run_as_threads(4, [&](comm::World& world) {
      testing::expect_match(
          testing::train_sharded(kGpt, world, sharding, options, {.replicate = 2}), expected, 1e-4);
    });
  }
}

// Trains with `passes` micro-batches a step, of which the last reduces, or each.
StateDict train_in_parts(comm::World& world, bool deferred, std::int64_t passes) {
  const auto model = kMlp.build();
  const auto sharded = fully_shard(model, world.mesh(), {.mixed_precision = precision_of({})});
  const auto optimizer = testing::stock_optimizer(testing::Optimizer::kSgd, sharded.parameters());
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    sharded.set_requires_gradient_sync(!deferred || pass + 1 == passes);
    const auto rows = testing::rows_of_rank(kMlp.batch(pass), world.rank(), world.size());
    model->loss(rows.x, rows.y).backward();
  }
  optimizer->step();
  return sharded.full_state_dict();
}

// Up to rounding in fp32 the same as adding up in fp32, never in bf16.
StateDict parts_by_hand(int ranks, std::int64_t passes) {
  const auto model = kMlp.build();
  const std::vector<at::Tensor> masters = testing::unique_parameters(*model);
  const auto optimizer = testing::stock_optimizer(testing::Optimizer::kSgd, masters);
  std::vector<at::Tensor> sums;
  for (const at::Tensor& master : masters) sums.push_back(at::zeros_like(master, at::kDouble));
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    for (int rank = 0; rank < ranks; ++rank) {
      const auto rows = testing::rows_of_rank(kMlp.batch(pass), rank, ranks);
      const auto gradients = gradients_of_rows(kMlp, masters, rows, at::kBFloat16);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += gradients[i];
    }
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    at::Tensor(masters[i]).mutable_grad() = (sums[i] / ranks).to(at::kFloat);
  }
  optimizer->step();
  return testing::parameters_of(*model);
}

TEST(MixedPrecision, MicroBatchesAddUpInTheShardsDtype) {
  const StateDict expected = parts_by_hand(2, 32);
  for (const bool deferred : {false, true}) {
    testing::run_on_every_backend(2, [&](comm::World& world) {
      testing::expect_match(train_in_parts(world, deferred, 32), expected, 1e-6);
    });
  }
}

// A layer that a pass may leave out.
struct Optional : testing::Model {
  Optional() : first(6, 4), extra(6, 4) {
    register_module("first", first);
    register_module("extra", extra);
    to(at::kFloat);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    const at::Tensor out = first(x) + (uses_extra ? extra(x) : at::zeros({}, at::kBFloat16));
    return (out - y).pow(2).mean();
  }
  torch::nn::Linear first, extra;
  bool uses_extra = true;
};

TEST(MixedPrecision, RanksMayHaveGradientsOfDifferentNumbersOfPasses) {
  Problem task = kMlp;
  task.build = [] { return testing::build_seeded([] { return std::make_shared<Optional>(); }); };
  task.batch = testing::mlp_problem({6, 4}, at::kFloat).batch;
  const auto reference = task.build();
  at::Tensor expected = at::zeros({4, 6}, at::kDouble);
  const std::vector<at::Tensor> values = testing::unique_parameters(*reference);
  for (const auto& [pass, rank] : {std::pair{0, 0}, {1, 0}, {1, 1}}) {
    const auto rows = testing::rows_of_rank(task.batch(pass), rank, 2);
    expected += gradients_of_rows(task, values, rows, at::kBFloat16)[2] / 2;
  }
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh(), {.mixed_precision = precision_of({})});
    for (std::int64_t pass = 0; pass < 2; ++pass) {
      sharded.set_requires_gradient_sync(pass == 1);
      dynamic_cast<Optional&>(*model).uses_extra = pass == 1 || world.rank() == 0;
      const auto rows = testing::rows_of_rank(task.batch(pass), world.rank(), 2);
      model->loss(rows.x, rows.y).backward();
    }
    const auto& shard = sharded.named_parameters()[2];
    ASSERT_EQ(shard.name, "extra.weight");
    EXPECT_TRUE(at::allclose(shard.tensor.grad().to(at::kDouble), state::part_of(shard, expected),
                             1e-6, 1e-9));
  });
}

// A scale for each rank's share of the gradient, which is that share.
struct Constant : testing::Model {
  explicit Constant(at::ScalarType dtype) {
    weight = register_parameter("weight", at::zeros({5}, dtype));
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor&) override { return (weight * x).sum(); }
  at::Tensor weight;
};

at::Tensor reduced_gradient(comm::World& world, const MixedPrecision& mixed, double mine,
                            int passes = 1) {
  const auto model = std::make_shared<Constant>(at::kFloat);
  const auto sharded = fully_shard(model, world.mesh(), {.mixed_precision = mixed});
  for (int pass = 0; pass < passes; ++pass) {
    const at::Tensor x = at::full({5}, mine, mixed.param_dtype.value_or(at::kFloat));
    model->loss(x, {}).backward();
  }
  const auto& shard = sharded.named_parameters().front();
  EXPECT_EQ(shard.tensor.grad().scalar_type(), at::kFloat);
  return shard.tensor.grad().clone();
}

TEST(MixedPrecision, D1_SumsOfBf16GradientsLoseNothingInFp32) {
  const double tiny = std::ldexp(1.0, -9);
  const MixedPrecision mixed{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
  testing::run_on_every_backend(4, [&](comm::World& world) {
    const at::Tensor gradient = reduced_gradient(world, mixed, world.rank() == 0 ? 1.0 : tiny);
    const at::Tensor expected = at::full_like(gradient, (1 + 3 * tiny) / 4);
    EXPECT_TRUE(at::equal(gradient, expected)) << gradient;
  });
}

TEST(MixedPrecision, D1_SixtyFourMicroBatchesAccumulateInFp32) {
  const MixedPrecision mixed{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
  const double value = at::full({}, 0.1, at::kBFloat16).item<double>();
  comm::run_as_threads(4, [&](comm::World& world) {
    const at::Tensor gradient = reduced_gradient(world, mixed, 0.1, 64);
    EXPECT_TRUE(at::allclose(gradient, at::full_like(gradient, 64 * value), 1e-6, 0)) << gradient;
  });
}

TEST(MixedPrecision, D8_Fp16SumsNeitherOverflowNorVanish) {
  const MixedPrecision mixed{.param_dtype = at::kHalf, .reduce_dtype = at::kHalf};
  testing::run_on_every_backend(4, [&](comm::World& world) {
    const at::Tensor large = reduced_gradient(world, mixed, 30000);
    EXPECT_TRUE(at::equal(large, at::full_like(large, 30000))) << large;
    const at::Tensor small = reduced_gradient(world, mixed, 1e-7);
    EXPECT_TRUE(small.ge(0.5e-7).all().item<bool>()) << small;
  });
}

struct WithBuffers : testing::Model {
  WithBuffers() : first(6, 8), norm(8), second(8, 4) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
    table = register_buffer("table", at::linspace(0, 1, 8));
    count = register_buffer("count", at::zeros({}, at::kLong));
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    seen = table.scalar_type();
    return (second(norm(first(x)) * table) - y).pow(2).mean();
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
  at::Tensor table;
  at::Tensor count;
  at::ScalarType seen = at::kFloat;
};

TEST(MixedPrecision, D2_BuffersKeepTheirTypeUnlessOneIsAskedFor) {
  for (const auto wanted : {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
    comm::run_as_threads(2, [&](comm::World& world) {
      const auto model = std::make_shared<WithBuffers>();
      const auto sharded =
          fully_shard(model, world.mesh(),
                      {.mixed_precision = {.param_dtype = at::kBFloat16, .buffer_dtype = wanted}});
      model->loss(at::randn({5, 6}), at::randn({5, 4})).backward();
      const at::ScalarType table = wanted.value_or(at::kFloat);
      EXPECT_EQ(model->seen, table);
      const StateDict state = sharded.full_state_dict();
      EXPECT_EQ(state.at("table").scalar_type(), table);
      EXPECT_EQ(state.at("count").scalar_type(), at::kLong);
      EXPECT_EQ(state.at("norm.running_var").scalar_type(), at::kFloat);
      EXPECT_EQ(model->norm->weight.scalar_type(), at::kFloat);
      EXPECT_EQ(model->first->weight.scalar_type(), at::kBFloat16);
    });
  }
}

struct WithNorm : testing::Model {
  WithNorm() : first(6, 8), norm(torch::nn::LayerNormOptions({8})), second(8, 4) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    return (second(cast(norm(up(first(x))))) - y).pow(2).mean();
  }
  // What the operators do by themselves when sharded, for the reference.
  at::Tensor up(const at::Tensor& x) const { return by_hand ? x.to(at::kFloat) : x; }
  at::Tensor cast(const at::Tensor& x) const { return by_hand ? x.to(at::kBFloat16) : x; }
  torch::nn::Linear first;
  torch::nn::LayerNorm norm;
  torch::nn::Linear second;
  bool by_hand = false;
};

TEST(MixedPrecision, D5_AUnitOfTwoTypesTrains) {
  const Problem task{
      .build = [] { return testing::build_seeded([] { return std::make_shared<WithNorm>(); }); },
      .batch = testing::mlp_problem({6, 4}, at::kFloat).batch};
  const auto reference = std::static_pointer_cast<WithNorm>(task.build());
  reference->by_hand = true;
  reference->first->to(at::kBFloat16);
  reference->second->to(at::kBFloat16);
  const auto rows = task.batch(0);
  reference->loss(rows.x.to(at::kBFloat16), rows.y).backward();
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded =
        fully_shard(model, world.mesh(),
                    {.auto_wrap_policy = root_only(),
                     .rules = {rule_for<torch::nn::LayerNormImpl>({.dtype = at::kFloat})},
                     .mixed_precision = precision_of({})});
    model->loss(rows.x, rows.y).backward();  // all rows on both ranks: the mean is each one's
    const auto expected = reference->named_parameters();
    for (const auto& shard : sharded.named_parameters()) {
      const at::Tensor whole = expected[shard.name].grad().to(at::kFloat);
      EXPECT_TRUE(at::equal(shard.tensor.grad(), state::part_of(shard, whole))) << shard.name;
    }
    EXPECT_EQ(dynamic_cast<WithNorm&>(*model).norm->weight.scalar_type(), at::kFloat);
    EXPECT_EQ(dynamic_cast<WithNorm&>(*model).first->weight.scalar_type(), at::kBFloat16);
  });
}

TEST(MixedPrecision, GathersHalfTheBytesAndHoldsHalfTheUnits) {
  const auto counted = [](const MixedPrecision& mixed) {
    Counters counters;
    testing::run_over_gloo(2, [&](comm::World& world) {
      const auto model = kGpt.build();
      const auto sharded = fully_shard(model, world.mesh(), {.mixed_precision = mixed});
      const auto rows = testing::rows_of_rank(kGpt.batch(0), world.rank(), 2);
      model->loss(rows.x, rows.y).backward();
      if (world.rank() == 0) counters = sharded.counters();
    });
    return counters;
  };
  const Counters full = counted({});
  const Counters half = counted({.param_dtype = at::kBFloat16});
  EXPECT_EQ(half.all_gathers, full.all_gathers);
  EXPECT_EQ(half.reduce_scatters, full.reduce_scatters);
  EXPECT_NEAR(static_cast<double>(half.all_gather_bytes),
              0.5 * static_cast<double>(full.all_gather_bytes), 1024);
  EXPECT_NEAR(static_cast<double>(half.reduce_scatter_bytes),
              0.5 * static_cast<double>(full.reduce_scatter_bytes), 1024);
  EXPECT_NEAR(static_cast<double>(half.peak_unsharded_bytes),
              0.5 * static_cast<double>(full.peak_unsharded_bytes), 1024);
  EXPECT_NEAR(static_cast<double>(half.gradient_bytes), static_cast<double>(full.gradient_bytes),
              1024);  // cuts between ranks are at other elements
}

TEST(MixedPrecision, TheTableSaysWhatIsWhere) {
  comm::World world = comm::single_rank();
  const auto sharded =
      fully_shard(kMlp.build(), world.mesh(),
                  {.auto_wrap_policy = root_only(), .mixed_precision = precision_of({})});
  EXPECT_THAT(sharded.describe(), HasSubstr("bfloat16, shards float32, reduced in float32"));
}

TEST(MixedPrecision, OnlyFloatingPointTypesAreTaken) {
  comm::World world = comm::single_rank();
  for (const MixedPrecision& mixed :
       {MixedPrecision{.param_dtype = at::kInt}, MixedPrecision{.reduce_dtype = at::kInt},
        MixedPrecision{.buffer_dtype = at::kInt}}) {
    try {
      const auto sharded = fully_shard(kMlp.build(), world.mesh(), {.mixed_precision = mixed});
      ADD_FAILURE() << "taken";
    } catch (const base::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("has to be a floating-point type"));
    }
  }
}

}  // namespace
}  // namespace fullshard::shard
