#include "fullshard/shard/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "fullshard/base/error.h"
#include "support/equality.h"
#include "support/training.h"

// B13: with SyncBatchNorm, ranks with batches of different sizes are one process with all rows.

namespace fullshard::shard {
namespace {

using torch::nn::BatchNormOptions;

// Rows of the global batch by rank.
using Cut = std::vector<std::int64_t>;

at::Tensor rows_of(const at::Tensor& all, const Cut& cut, int rank) {
  return all.split_with_sizes(cut).at(static_cast<std::size_t>(rank));
}

at::Tensor batch(at::IntArrayRef shape, std::uint64_t seed) {
  const auto random = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, random, at::kDouble) * 3 + 50;  // far from zero
}

StateDict values_of(const torch::nn::Module& module) {
  StateDict out;
  for (const auto& item : module.named_parameters()) out[item.key()] = item.value().detach();
  for (const auto& item : module.named_buffers()) out[item.key()] = item.value();
  return out;
}

// The layer alone, with uneven parameters, through three forward and backward passes.
template <typename Norm>
void expect_equal_to(const BatchNormOptions& options, at::IntArrayRef shape, const Cut& cut) {
  const auto prepared = [](auto layer) {
    layer->to(at::kDouble);
    const at::NoGradGuard no_grad;
    if (layer->weight.defined()) {
      layer->weight.copy_(at::linspace(-1, 2, layer->weight.numel(), at::kDouble));
      layer->bias.copy_(at::linspace(3, 1, layer->bias.numel(), at::kDouble));
    }
    return layer;
  };
  comm::run_as_threads(static_cast<int>(cut.size()), [&](comm::World& world) {
    Norm reference = prepared(Norm(options));
    SyncBatchNorm layer = prepared(SyncBatchNorm(options, world.mesh().all));
    for (std::uint64_t step = 0; step < 3; ++step) {
      const at::Tensor all = batch(shape, step).requires_grad_();
      const at::Tensor direction = batch(shape, 90 + step);  // of the loss
      const at::Tensor expected = reference(all);
      (expected * direction).sum().backward();

      const at::Tensor mine = rows_of(all.detach(), cut, world.rank()).clone().requires_grad_();
      const at::Tensor out = layer(mine);
      (out * rows_of(direction, cut, world.rank())).sum().backward();
      testing::expect_match({{"outputs", out.detach()}, {"gradient", mine.grad()}},
                            {{"outputs", rows_of(expected.detach(), cut, world.rank())},
                             {"gradient", rows_of(all.grad(), cut, world.rank())}},
                            1e-10);
    }
    testing::expect_match(values_of(*layer), values_of(*reference), 1e-10);
    layer->eval();
    reference->eval();
    const at::Tensor some = batch(shape, 40);
    EXPECT_LT(at::Tensor(layer(some) - reference(some)).abs().max().item().toDouble(), 1e-10);
    for (const auto& item : reference->named_parameters()) {
      at::Tensor gradient = layer->named_parameters()[item.key()].grad().clone();
      world.group()
          .all_reduce({gradient.mutable_data_ptr(), gradient.numel(), base::DType::kFloat64},
                      comm::ReduceOp::kSum, {"test", 0})
          .wait();
      testing::expect_match({{item.key(), gradient}}, {{item.key(), item.value().grad()}}, 1e-10);
    }
  });
}

TEST(SyncBatchNorm, B13_EqualsOneProcessWithAllRows) {
  expect_equal_to<torch::nn::BatchNorm1d>(BatchNormOptions(4), {8, 4}, {3, 5});
  expect_equal_to<torch::nn::BatchNorm1d>(BatchNormOptions(3), {6, 3, 5}, {1, 2, 3});
  expect_equal_to<torch::nn::BatchNorm2d>(BatchNormOptions(3).eps(0.1), {4, 3, 2, 5}, {3, 1});
  expect_equal_to<torch::nn::BatchNorm3d>(BatchNormOptions(2), {3, 2, 2, 1, 2}, {2, 1});
}

TEST(SyncBatchNorm, HasTheOptionsOfBatchNorm) {
  const BatchNormOptions plain(4);
  for (const auto& options :
       {BatchNormOptions(plain).affine(false), BatchNormOptions(plain).momentum(std::nullopt),
        BatchNormOptions(plain).momentum(0.7), BatchNormOptions(plain).track_running_stats(false),
        BatchNormOptions(plain).affine(false).track_running_stats(false)}) {
    expect_equal_to<torch::nn::BatchNorm1d>(options, {8, 4}, {3, 5});
  }
}

TEST(SyncBatchNorm, ARankMayHaveNoRowsOrOne) {
  expect_equal_to<torch::nn::BatchNorm1d>(BatchNormOptions(4), {8, 4}, {0, 8});
  expect_equal_to<torch::nn::BatchNorm1d>(BatchNormOptions(4), {2, 4}, {1, 1});
}

TEST(SyncBatchNorm, OneRankIsPlainBatchNorm) {
  expect_equal_to<torch::nn::BatchNorm2d>(BatchNormOptions(3), {4, 3, 2, 5}, {4});
}

TEST(SyncBatchNorm, TakesHalfPrecision) {
  comm::run_as_threads(2, [](comm::World& world) {
    SyncBatchNorm layer(BatchNormOptions(4), world.mesh().all);
    torch::nn::BatchNorm1d reference(BatchNormOptions(4));
    const at::Tensor all = batch({8, 4}, 1).to(at::kBFloat16);
    const at::Tensor mine = rows_of(all, {3, 5}, world.rank()).clone().requires_grad_();
    const at::Tensor out = layer(mine);
    EXPECT_EQ(out.scalar_type(), at::kBFloat16);
    out.sum().backward();
    EXPECT_EQ(mine.grad().scalar_type(), at::kBFloat16);
    reference(all.to(at::kFloat));
    testing::expect_match(values_of(*layer), values_of(*reference), 1e-5);
  });
}

// Normalisation inside a model that is sharded and trained.
template <typename Norm>
struct Net : torch::nn::Module {
  explicit Net(Norm normalise) : norm(std::move(normalise)) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("last", last);
    double start = 0.1;
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) {
      parameter.copy_(
          at::arange(parameter.numel(), at::kDouble).add(start).sin().view(parameter.sizes()));
      start += 1;
    }
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return last(torch::tanh(norm(first(x)))); }
  // Without a bias, whose gradient would be zero but for rounding.
  torch::nn::Linear first{torch::nn::LinearOptions(4, 6).bias(false)};
  Norm norm;
  torch::nn::Linear last{6, 3};
};

constexpr std::int64_t kRows = 8;
constexpr std::uint64_t kSteps = 4;

template <typename Model, typename Parameters>
void train(Model& model, const Parameters& parameters, const Cut& cut, int rank) {
  const auto optimizer = testing::stock_optimizer(testing::Optimizer::kAdamW, parameters);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    const at::Tensor out = model.forward(rows_of(batch({kRows, 4}, step), cut, rank));
    (out.pow(2).sum() / kRows).backward();
    optimizer->step();
  }
}

TEST(SyncBatchNorm, B13_TrainsAShardedModelOnUnevenBatchesAsOneProcess) {
  Net<torch::nn::BatchNorm1d> reference(torch::nn::BatchNorm1d(6));
  train(reference, reference.parameters(), {kRows}, 0);
  const StateDict expected = values_of(reference);
  for (const auto strategy : {ShardingStrategy::FULL_SHARD, ShardingStrategy::SHARD_GRAD_OP,
                              ShardingStrategy::SHARD_OPTIMIZER_ONLY, ShardingStrategy::NO_SHARD}) {
    std::vector<StateDict> saved(2);
    comm::run_as_threads(2, [&](comm::World& world) {
      const auto model = std::make_shared<Net<SyncBatchNorm>>(
          SyncBatchNorm(BatchNormOptions(6), world.mesh().all));
      const auto sharded =
          fully_shard(std::static_pointer_cast<torch::nn::Module>(model), world.mesh(),
                      {.auto_wrap_policy = wrap_named({"first", "norm"}),
                       .sharding_strategy = strategy,
                       .gradient_divide_factor = 1});  // losses are sums over the rows of a rank
      train(*model, sharded.parameters(), {3, 5}, world.rank());
      StateDict& mine = saved[static_cast<std::size_t>(world.rank())];
      mine = sharded.full_state_dict();
      for (const auto& item : model->named_buffers()) {
        EXPECT_TRUE(at::equal(item.value(), mine.at(item.key()))) << item.key();
      }
    });
    testing::expect_match(saved[0], expected, 1e-10);
    testing::expect_bitwise_equal(saved[1], saved[0]);
  }
}

std::string error_of(const std::function<void(comm::World&)>& body) {
  try {
    comm::run_as_threads(2, body);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

TEST(SyncBatchNorm, RefusesWhatHasNoVariance) {
  const std::string error = error_of([](comm::World& world) {
    SyncBatchNorm layer(BatchNormOptions(4), world.mesh().all);
    layer(at::ones({world.rank(), 4}));
  });
  EXPECT_THAT(error, ::testing::HasSubstr("2 or more values a feature over all 2 ranks"));
}

TEST(SyncBatchNorm, RefusesOtherShapes) {
  const std::string error = error_of([](comm::World& world) {
    SyncBatchNorm layer(BatchNormOptions(4), world.mesh().all);
    layer(at::ones({2, 3}));
  });
  EXPECT_THAT(error, ::testing::HasSubstr("4 features takes [rows, 4, ...], not [2, 3]"));
}

TEST(SyncBatchNorm, ShowsItself) {
  std::ostringstream text;
  text << SyncBatchNorm(BatchNormOptions(4), comm::single_rank().mesh().all);
  EXPECT_EQ(text.str(), "fullshard::SyncBatchNorm(4, eps=1e-05, ranks=1)");
}

}  // namespace
}  // namespace fullshard::shard
