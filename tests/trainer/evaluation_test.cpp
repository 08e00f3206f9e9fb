#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fullshard/data/validation.h"
#include "fullshard/shard/fully_shard.h"
#include "trainer/generation.h"
#include "trainer/setup.h"
#include "trainer/small_run.h"
#include "trainer/validation.h"

namespace fullshard::testing {
namespace {

std::shared_ptr<const data::TokenSource> tokens(std::string text) {
  const auto shared = std::make_shared<const std::string>(std::move(text));
  return std::make_shared<data::ByteTokens>(shared, std::string_view(*shared));
}

config::TrainConfig exact_config(const TemporaryFolder& folder) {
  config::TrainConfig config = small_config(folder);
  config.training.dtype = base::DType::kFloat64;
  return config;
}

double plain_loss(const config::TrainConfig& config, const data::ValidationOptions& options,
                  const std::shared_ptr<const data::TokenSource>& text) {
  const torch::NoGradGuard no_grad;
  models::Gpt model = trainer::make_model(config);
  data::ValidationOptions whole = options;
  whole.batch_size = 1000;
  const data::Batch batch = data::ValidationSet(text, whole).batch(0);
  return model->loss(batch.tokens, batch.targets).item<double>();
}

class ValidationOver : public ::testing::TestWithParam<int> {};

TEST_P(ValidationOver, IsTheMeanOverEverySample) {
  const TemporaryFolder folder;
  const config::TrainConfig config = exact_config(folder);
  const int world = GetParam();
  // Five windows: some of four ranks run out before the others.
  const auto text = tokens(sample_text().substr(0, 16 * 5 + 1));
  const double expected = plain_loss(config, {.seq_len = 16}, text);
  comm::run_as_threads(world, [&](comm::World& rank) {
    models::Gpt model = trainer::make_model(config);
    const auto sharded = shard::fully_shard(model, rank.mesh(), trainer::shard_options(config));
    const data::ValidationSet set(
        text, {.seq_len = 16, .batch_size = 1, .rank = rank.rank(), .world = world});
    const auto outcome = trainer::validate(model, set, rank.group(), nullptr);
    ASSERT_TRUE(outcome.loss);
    EXPECT_NEAR(*outcome.loss, expected, 1e-10);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ValidationOver, ::testing::Values(1, 2, 3, 4));

TEST(Validation, K3_DoesNotDisturbTraining) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  config.validation.freq = 1;
  const auto with = run_small(config, 2);
  config.validation.enable = false;
  const auto without = run_small(config, 2);
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_EQ(with.generated, without.generated);
  EXPECT_FALSE(without.validation_loss);
}

TEST(Validation, HappensOnlyAtTheEndWithoutAFrequency) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  config.validation.freq = 0;
  config.metrics.jsonl = folder.path("steps.jsonl");
  EXPECT_TRUE(run_small(config, 2).validation_loss);
  const std::string lines = read_file(config.metrics.jsonl);
  EXPECT_EQ(lines.find("validation_loss"), lines.rfind("validation_loss"));
}

TEST(Generation, HasTheLengthAskedFor) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  config.training.steps = 1;
  for (const int bytes : {0, 1, 16, 37}) {
    config.generation.bytes = bytes;
    EXPECT_EQ(run_small(config, 2).generated.size(), static_cast<std::size_t>(bytes));
  }
}

TEST(Generation, IsTheSameForEveryWorldSizeAndEachTime) {
  const TemporaryFolder folder;
  const config::TrainConfig config = exact_config(folder);
  const std::string alone = run_small(config, 1).generated;
  EXPECT_EQ(run_small(config, 1).generated, alone);
  EXPECT_EQ(run_small(config, 3).generated, alone);
}

TEST(Generation, TakesAnEmptyPrompt) {
  const TemporaryFolder folder;
  config::TrainConfig config = small_config(folder);
  config.training.steps = 1;
  config.generation.prompt.clear();
  EXPECT_EQ(run_small(config, 1).generated.size(), 40U);
}

TEST(Generation, IsShownWithoutWhatWouldUpsetATerminal) {
  EXPECT_EQ(trainer::printable("one\ttwo\n"), "one\ttwo\n");
  EXPECT_EQ(trainer::printable("\x1b[2J"), "\uFFFD[2J");
  EXPECT_EQ(trainer::printable("caf\xC3\xA9 \xC3"), "caf\u00E9 \uFFFD");
  EXPECT_EQ(trainer::printable("\xFF\xFE."), "\uFFFD\uFFFD.");
}

}  // namespace
}  // namespace fullshard::testing
