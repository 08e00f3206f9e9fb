#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "fullshard/data/corpus.h"
#include "fullshard/data/windows.h"
#include "fullshard/models/gpt.h"
#include "trainer/setup.h"
#include "trainer/small_run.h"

namespace fullshard::testing {
namespace {

using trainer::TrainResult;

void expect_close(const std::vector<double>& actual, const std::vector<double>& expected,
                  double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], tolerance * std::abs(expected[i])) << "step " << i + 1;
  }
}

void expect_same_curve(const TrainResult& actual, const TrainResult& expected, double tolerance) {
  expect_close(actual.losses, expected.losses, tolerance);
  expect_close(actual.grad_norms, expected.grad_norms, 10 * tolerance);
  ASSERT_TRUE(actual.validation_loss && expected.validation_loss);
  EXPECT_NEAR(*actual.validation_loss, *expected.validation_loss,
              tolerance * *expected.validation_loss);
}

/// The same training without any of fullshard's engine, optimizer or loop.
TrainResult reference(const config::TrainConfig& config) {
  models::Gpt model = trainer::make_model(config);
  const data::Text text = data::load_text_file(config.data.path);
  const auto source = std::make_shared<data::ByteTokens>(
      text, data::split(*text, config.data.validation_fraction).train);
  const data::Windows windows(source, config.training.seq_len,
                              static_cast<std::uint64_t>(config.training.seed));
  std::vector<at::Tensor> decaying, flat;
  for (const auto& parameter : model->parameters()) {
    (parameter.dim() > 1 ? decaying : flat).push_back(parameter);
  }
  const auto options = torch::optim::AdamWOptions(config.optimizer.lr)
                           .betas({config.optimizer.beta1, config.optimizer.beta2})
                           .eps(config.optimizer.eps)
                           .weight_decay(config.optimizer.weight_decay);
  auto flat_options = std::make_unique<torch::optim::AdamWOptions>(options);
  flat_options->weight_decay(0);
  torch::optim::AdamW optimizer({{decaying}, {flat, std::move(flat_options)}}, options);
  TrainResult result;
  for (std::int64_t step = 0; step < config.training.steps; ++step) {
    const std::int64_t batch_size = config.training.global_batch_size;
    const data::Batch batch = windows.batch(step * batch_size, batch_size);
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(trainer::lr_schedule(config).lr(step));
    }
    optimizer.zero_grad();
    const at::Tensor loss = model->loss(batch.tokens, batch.targets);
    loss.backward();
    result.losses.push_back(loss.item<double>());
    result.grad_norms.push_back(
        torch::nn::utils::clip_grad_norm_(model->parameters(), config.training.max_norm));
    optimizer.step();
  }
  return result;
}

TEST(LossCurve, O2_EqualsUnshardedTrainingWithStockParts) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  config.training.dtype = base::DType::kFloat64;
  config.training.max_norm = 0.5;  // below the norms of the first steps, so that clipping acts
  const TrainResult expected = reference(config);
  ASSERT_GT(expected.grad_norms.front(), config.training.max_norm);
  for (const int window : {1, 3}) {
    config.training.gradient_accumulation_steps = window;
    const TrainResult actual = run_small(config, 2);
    expect_close(actual.losses, expected.losses, 1e-10);
    expect_close(actual.grad_norms, expected.grad_norms, 1e-9);
  }
}

TEST(LossCurve, O2_DoesNotDependOnTheNumberOfRanks) {
  const TemporaryFolder folder;
  const config::TrainConfig config = small_config(folder);
  const TrainResult alone = run_small(config, 1);
  EXPECT_LT(alone.losses.back(), 0.7 * alone.losses.front());
  for (const int world : {2, 3, 4}) {
    SCOPED_TRACE(world);
    expect_same_curve(run_small(config, world), alone, 1e-5);
  }
}

TEST(LossCurve, O2_CountsEverySampleAlikeWhenSharesDiffer) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  config.training.dtype = base::DType::kFloat64;
  config.training.global_batch_size = 11;
  const TrainResult alone = run_small(config, 1);
  config.training.gradient_accumulation_steps = 2;
  expect_same_curve(run_small(config, 3), alone, 1e-10);
}

class Strategy : public ::testing::TestWithParam<config::ShardingStrategy> {};

TEST_P(Strategy, HasNoInfluenceOnTheCurve) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  const TrainResult alone = run_small(config, 1);
  config.parallelism.sharding_strategy = GetParam();
  for (const config::Wrap wrap : {config::Wrap::kBlocks, config::Wrap::kSize}) {
    config.parallelism.wrap = wrap;
    config.parallelism.min_unit_params = 5000;
    expect_same_curve(run_small(config, 2), alone, 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Strategy,
                         ::testing::Values(config::ShardingStrategy::kFullShard,
                                           config::ShardingStrategy::kShardGradOp,
                                           config::ShardingStrategy::kNoShard));

TEST(LossCurve, MixedPrecisionFollowsFullPrecision) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  const TrainResult exact = run_small(config, 2);
  config.training.mixed_precision_param = config::Narrow::kBFloat16;
  config.training.mixed_precision_reduce = config::Narrow::kFloat32;
  EXPECT_EQ(trainer::shard_options(config).mixed_precision.param_dtype, at::kBFloat16);
  const TrainResult narrow = run_small(config, 2);
  expect_close(narrow.losses, exact.losses, 0.03);
  EXPECT_NE(narrow.losses, exact.losses);
}

TEST(LossCurve, BalancingChangesNothing) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  config.training.dtype = base::DType::kFloat64;
  const TrainResult still = run_small(config, 2);
  config.parallelism.balance_every = 2;
  config.parallelism.balance_memory_limit = std::int64_t{1} << 40;
  expect_same_curve(run_small(config, 2), still, 1e-10);
}

TEST(LossCurve, ActivationCheckpointingChangesNothing) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  config.training.dtype = base::DType::kFloat64;
  const TrainResult kept = run_small(config, 2);
  for (const auto mode :
       {config::ActivationCheckpoint::kFull, config::ActivationCheckpoint::kSelective}) {
    config.activation_checkpoint.mode = mode;
    EXPECT_GT(trainer::gpt_options(config).recompute_every, 0);
    expect_same_curve(run_small(config, 2), kept, 1e-10);
  }
}

TEST(LossCurve, MicroBatchesEqualOneBigBatch) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  config.training.dtype = base::DType::kFloat64;
  const TrainResult whole = run_small(config, 2);
  config.training.gradient_accumulation_steps = 3;
  expect_same_curve(run_small(config, 2), whole, 1e-10);
}

TEST(LossCurve, B14_IdenticalRunsAreBitwiseEqual) {
  const TemporaryFolder folder;
  const config::TrainConfig config = small_config(folder);
  const TrainResult first = run_small(config, 2);
  const TrainResult second = run_small(config, 2);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.grad_norms, second.grad_norms);
  EXPECT_EQ(first.validation_loss, second.validation_loss);
  EXPECT_EQ(first.generated, second.generated);
}

TEST(LossCurve, DependsOnTheSeed) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  config.training.steps = 2;
  const TrainResult first = run_small(config, 2);
  ++config.training.seed;
  EXPECT_NE(run_small(config, 2).losses, first.losses);
}

TEST(LossCurve, ShortRunsCutTheWarmUp) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  config.training.steps = 1;
  config.lr_scheduler.warmup_steps = 20;
  EXPECT_EQ(run_small(config, 1).steps, 1);
}

}  // namespace
}  // namespace fullshard::testing
