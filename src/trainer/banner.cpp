#include "trainer/banner.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include <cmath>
#include <numbers>

#include "fullshard/base/text.h"
#include "trainer/setup.h"
#include "trainer/text.h"

namespace fullshard::trainer {
namespace {

const char* name_of(config::ShardingStrategy strategy) {
  switch (strategy) {
    case config::ShardingStrategy::kFullShard: return "FULL_SHARD";
    case config::ShardingStrategy::kShardGradOp: return "SHARD_GRAD_OP";
    case config::ShardingStrategy::kHybridShard: return "HYBRID_SHARD";
    case config::ShardingStrategy::kShardOptimizerOnly: return "SHARD_OPTIMIZER_ONLY";
    case config::ShardingStrategy::kNoShard: break;
  }
  return "NO_SHARD";
}

const char* how_they_meet(const config::TrainConfig& config, const comm::World& world) {
  if (config.comm.backend == config::Backend::kLocal) return " threads of one process";
  return world.group().shares_memory() ? " processes that share memory"
                                       : " processes that send messages";
}

std::string ranks(const config::TrainConfig& config, const comm::World& world) {
  std::string text = fmt::format("{}", world.size());
  if (world.size() > 1) text += how_they_meet(config, world);
  if (config.job.threads_per_rank > 0) {
    const int threads_each = config.job.threads_per_rank;
    text += fmt::format(", {} computing thread{} each", threads_each, threads_each > 1 ? "s" : "");
  }
  return text + fmt::format("; {}", name_of(config.parallelism.sharding_strategy));
}

std::string model(const config::TrainConfig& config, const shard::ShardedModule& sharded) {
  return fmt::format("{}, {} blocks of width {}, {} heads; {} parameters in {} units, {}",
                     config.model.name, config.model.n_layers, config.model.dim,
                     config.model.n_heads, grouped(sharded.parameter_count()),
                     sharded.counters().units.size(), base::to_string(config.training.dtype));
}

std::string data(const TrainingText& text) {
  std::string line =
      fmt::format("{}: {} bytes to train on", text.name, grouped(text.train->size()));
  if (text.validation) line += fmt::format(", {} to validate", grouped(text.validation->size()));
  return line;
}

std::string steps(const config::TrainConfig& config, const TrainingText& text) {
  const auto tokens = static_cast<double>(tokens_per_step(config) * config.training.steps);
  const std::int64_t warmup = lr_schedule(config).warmup_steps;
  std::string line = fmt::format(
      "{} of {} sequences x {} bytes = {}, {:.2f} epochs; {}, rate {} after {} steps",
      grouped(config.training.steps), config.training.global_batch_size, config.training.seq_len,
      grouped(tokens_per_step(config)), tokens / static_cast<double>(text.train->size()),
      config.optimizer.name, config.optimizer.lr, warmup);
  if (warmup < config.lr_scheduler.warmup_steps) {
    line += fmt::format(" (lr_scheduler.warmup_steps {} is longer than the run)",
                        config.lr_scheduler.warmup_steps);
  }
  return line;
}

std::string shares_of_time(const RunTotals& totals) {
  const double percent = 100 / totals.step_seconds;
  return fmt::format(
      "time in steps: {:.1f}% computing, {:.1f}% exposed communication, {:.1f}% waiting for data, "
      "{:.1f}% optimizer\n",
      percent * totals.compute_seconds, percent * totals.exposed_comm_seconds,
      percent * totals.data_seconds, percent * totals.optimizer_seconds);
}

}  // namespace

std::string banner(const config::TrainConfig& config, const comm::World& world,
                   const shard::ShardedModule& sharded, const TrainingText& text,
                   double peak_flops) {
  return fmt::format(
      "model   {}\ndata    {}\nranks   {}\nsteps   {}\npeak    {:.1f} GFLOP/s in matrix products "
      "(measured)\n",
      model(config, sharded), data(text), ranks(config, world), steps(config, text),
      peak_flops / 1e9);
}

std::string summary(const TrainResult& result, const RunTotals& totals, std::int64_t total_steps) {
  std::string text;
  if (result.stop_signal != 0) {
    text = fmt::format("stopped by SIG{} after step {} of {}\n", sigabbrev_np(result.stop_signal),
                       grouped(result.steps), grouped(total_steps));
  }
  text += fmt::format(
      "{} steps in {}, {} tokens a second\n", grouped(result.steps), duration(totals.seconds),
      grouped(std::llround(static_cast<double>(totals.tokens) / totals.step_seconds)));
  text += shares_of_time(totals);
  if (result.validation_loss) {
    text += fmt::format("validation loss {:.4f} nats a byte, {:.4f} bits a byte\n",
                        *result.validation_loss, *result.validation_loss / std::numbers::ln2);
  }
  return text + fmt::format("peak memory of a rank {}, of gathered parameters {}\n",
                            base::format_bytes(totals.peak_rss_bytes),
                            base::format_bytes(totals.peak_unsharded_bytes));
}

}  // namespace fullshard::trainer
