#include "trainer/small_run.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

namespace fullshard::testing {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string sample_text() {
  const std::vector<std::string> who = {"the shepherd", "a king", "my brother", "the old woman"};
  const std::vector<std::string> what = {"went up to", "came down from", "looked upon", "left"};
  const std::vector<std::string> where = {"the mountain", "the city", "the river", "the house",
                                          "the field"};
  std::string text;
  for (std::size_t i = 0; text.size() < 12'000; ++i) {
    text += who[i % 4] + " " + what[(i / 3 + i * i) % 4] + " " + where[(i * 7 + i / 5) % 5] + ".\n";
  }
  return text;
}

config::TrainConfig small_config(const TemporaryFolder& folder) {
  config::TrainConfig config;
  config.model = {.n_layers = 2, .dim = 32, .n_heads = 2};
  config.training.seed = 3;
  config.training.steps = 20;
  config.training.seq_len = 16;
  config.training.global_batch_size = 12;
  config.optimizer.lr = 5e-3;
  config.lr_scheduler = {.warmup_steps = 4, .min_lr_factor = 0.1};
  config.data.path = folder.write("text", sample_text());
  config.validation = {.enable = true, .freq = 8, .steps = 2};
  config.metrics.log_freq = 5;
  config.generation = {.bytes = 40, .temperature = 0.8, .prompt = "the "};
  return config;
}

std::vector<trainer::TrainResult> run_ranks(
    int world, const std::function<trainer::TrainResult(comm::World&)>& rank) {
  std::vector<trainer::TrainResult> results(static_cast<std::size_t>(world));
  comm::CommOptions options;
  options.timeout = std::chrono::seconds(60);
  comm::run_as_threads(
      world,
      [&](comm::World& world_of_rank) {
        results[static_cast<std::size_t>(world_of_rank.rank())] = rank(world_of_rank);
      },
      options);
  return results;
}

trainer::TrainResult run_small(const config::TrainConfig& config, int world,
                               const trainer::RunContext& context) {
  const auto results =
      run_ranks(world, [&](comm::World& rank) { return trainer::train(config, rank, context); });
  for (const trainer::TrainResult& result : results) {
    EXPECT_EQ(result.steps, results[0].steps);
    EXPECT_EQ(result.losses, results[0].losses);
    EXPECT_EQ(result.grad_norms, results[0].grad_norms);
    EXPECT_EQ(result.validation_loss, results[0].validation_loss);
    EXPECT_EQ(result.generated, results[0].generated);
    EXPECT_EQ(result.stop_signal, results[0].stop_signal);
  }
  return results[0];
}

}  // namespace fullshard::testing
