#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <mutex>

#include "fullshard/base/error.h"
#include "fullshard/shard/fully_shard.h"
#include "trainer/setup.h"
#include "trainer/small_run.h"
#include "trainer/train_step.h"

// B7: ranks and micro-batches with different numbers of targets that are to be learnt.

namespace fullshard::testing {
namespace {

constexpr std::int64_t kWords = 17;
constexpr std::int64_t kLength = 13;

// A text whose sample `w` has the first counts[w] of its targets to learn.
class MaskedTokens : public data::TokenSource {
 public:
  explicit MaskedTokens(std::vector<std::int64_t> counts) : counts_(std::move(counts)) {}

  std::int64_t size() const override {
    return static_cast<std::int64_t>(counts_.size()) * kLength + 1;
  }
  void read(std::int64_t begin, std::span<std::int64_t> out) const override {
    for (std::int64_t& token : out) {
      token = (begin * begin + 3 * begin) % kWords;
      ++begin;
    }
  }
  void mask(std::int64_t begin, std::span<std::int64_t> targets) const override {
    const auto count = static_cast<std::size_t>(counts_[static_cast<std::size_t>(begin / kLength)]);
    for (std::int64_t& target : targets.subspan(count)) target = data::kIgnoredTarget;
  }

 private:
  std::vector<std::int64_t> counts_;
};

struct Task {
  config::TrainConfig config;
  std::shared_ptr<const MaskedTokens> text;
};

// One step takes every sample of the text; `counts` are in the order of the first.
Task make_task(const std::vector<std::int64_t>& counts, std::int64_t micro_batches = 1) {
  Task task;
  config::TrainConfig& config = task.config;
  config.training.seq_len = kLength;
  config.training.global_batch_size = static_cast<int>(counts.size());
  config.training.gradient_accumulation_steps = static_cast<int>(micro_batches);
  config.training.max_norm = 0;
  config.training.steps = 3;
  config.optimizer.no_decay = {};
  const data::Windows order(std::make_shared<MaskedTokens>(counts), kLength, 0);
  std::vector<std::int64_t> by_window(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto window = order.window_of({0, static_cast<std::int64_t>(i)});
    by_window[static_cast<std::size_t>(window)] = counts[i];
  }
  task.text = std::make_shared<const MaskedTokens>(by_window);
  return task;
}

models::Gpt make_gpt() {
  static std::mutex one_at_a_time;  // ranks as threads share torch's generator
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(4);
  models::Gpt model(models::GptOptions{
      .vocab_size = kWords, .seq_len = kLength, .dim = 16, .n_layers = 1, .n_heads = 2});
  model->to(torch::kDouble);
  return model;
}

struct Curve {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, at::Tensor> gradients;  // of the first step, whole
};

// All samples in one batch of one process, with stock parts.
Curve reference(const Task& task) {
  const config::TrainConfig& config = task.config;
  models::Gpt model = make_gpt();
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(config.optimizer.lr)
                                    .betas({config.optimizer.beta1, config.optimizer.beta2})
                                    .eps(config.optimizer.eps)
                                    .weight_decay(config.optimizer.weight_decay));
  const data::Windows windows(task.text, kLength, 0);
  Curve curve;
  for (std::int64_t step = 0; step < config.training.steps; ++step) {
    const std::int64_t rows = config.training.global_batch_size;
    const data::Batch batch = windows.batch(step * rows, rows);
    optimizer.zero_grad();
    const at::Tensor loss = model->loss(batch.tokens, batch.targets);
    loss.backward();
    curve.losses.push_back(loss.item<double>());
    double squares = 0;
    for (const auto& item : model->named_parameters()) {
      const at::Tensor gradient = item.value().grad().clone();
      squares += gradient.pow(2).sum().item<double>();
      if (step == 0) curve.gradients[item.key()] = gradient;
    }
    curve.norms.push_back(std::sqrt(squares));
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(trainer::lr_schedule(config).lr(step));
    }
    optimizer.step();
  }
  return curve;
}

// What this rank's gradients are, against its ranges of the whole ones.
void expect_gradients(const shard::ShardedModule& sharded, const Curve& expected) {
  for (const state::ShardedTensor& parameter : sharded.named_parameters()) {
    const at::Tensor whole = expected.gradients.at(parameter.name).flatten();
    const at::Tensor mine = whole.slice(0, parameter.begin, parameter.end);
    if (mine.numel() == 0) continue;
    const double off = (parameter.tensor.grad() - mine).abs().max().item<double>();
    EXPECT_LT(off, 1e-12) << parameter.name;
  }
}

void train_and_compare(const Task& task, int ranks) {
  const Curve expected = reference(task);
  comm::run_as_threads(ranks, [&](comm::World& world) {
    models::Gpt model = make_gpt();
    const auto sharded = shard::fully_shard(model, world.mesh());
    trainer::TrainStep step(task.config, world, model, sharded, task.text);
    for (std::size_t i = 0; i < expected.losses.size(); ++i) {
      const trainer::StepReport report = step.run(static_cast<std::int64_t>(i) + 1, 0).report;
      EXPECT_NEAR(report.loss, expected.losses[i], 1e-10) << "step " << i + 1;
      EXPECT_NEAR(report.grad_norm, expected.norms[i], 1e-10) << "step " << i + 1;
      if (i == 0) expect_gradients(sharded, expected);
    }
  });
}

TEST(MaskedTargets, B7_EveryTokenCountsAlikeWhicheverRankHasIt) {
  train_and_compare(make_task({3, 13}), 2);
}

TEST(MaskedTargets, B7_EveryTokenCountsAlikeWhicheverMicroBatchHasIt) {
  train_and_compare(make_task({3, 13, 1, 7, 12, 2, 5}, 2), 1);
  train_and_compare(make_task({3, 13, 1, 7, 12, 2, 5}, 2), 3);
}

TEST(MaskedTargets, B7_RanksAndMicroBatchesMayHaveNothingToLearn) {
  train_and_compare(make_task({0, 0, 4, 0, 9, 13}, 3), 2);
  train_and_compare(make_task({0, 3, 0}), 3);
}

TEST(MaskedTargets, AStepWithNothingToLearnIsAnErrorThatSaysSo) {
  const Task task = make_task({0, 0});
  try {
    comm::run_as_threads(2, [&](comm::World& world) {
      models::Gpt model = make_gpt();
      const auto sharded = shard::fully_shard(model, world.mesh());
      trainer::TrainStep(task.config, world, model, sharded, task.text).run(1, 0);
    });
    ADD_FAILURE() << "no error";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("step 1: no target"));
  }
}

}  // namespace
}  // namespace fullshard::testing
