#include "trainer/train_step.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <utility>

#include "fullshard/base/error.h"
#include "fullshard/optim/state_bytes.h"
#include "trainer/process_memory.h"
#include "trainer/rank_notes.h"
#include "trainer/setup.h"
#include "trainer/step_meter.h"

namespace fullshard::trainer {
namespace {

std::int64_t learnt_targets(const data::StepData& data) {
  std::int64_t count = 0;
  for (const data::Batch& batch : data.micro_batches) count += batch.learnt();
  return count;
}

/// The factor on gradients of this norm, as torch::nn::utils::clip_grad_norm_ computes it; none
/// when they stay as they are.
std::optional<double> clip_coefficient(double max_norm, double norm) {
  if (max_norm == 0) return std::nullopt;
  const double factor = max_norm / (norm + 1e-6);
  return factor < 1 ? std::optional(factor) : std::nullopt;
}

}  // namespace

TrainStep::TrainStep(const config::TrainConfig& config, comm::World& world, models::Gpt model,
                     const shard::ShardedModule& sharded,
                     std::shared_ptr<const data::TokenSource> text)
    : config_(config),
      world_(world),
      model_(std::move(model)),
      sharded_(sharded),
      optimizer_(sharded.named_parameters(), adamw_options(config), group_rules(config)),
      schedule_(lr_schedule(config)),
      windows_(std::make_shared<data::Windows>(std::move(text), config.training.seq_len,
                                               static_cast<std::uint64_t>(config.training.seed))),
      loader_(windows_, loader_options(config, world)) {
  schedule_.validate();
  const config::ParallelismConfig& parallelism = config.parallelism;
  if (parallelism.balance_every == 0) return;
  optimizer_state_ = optim::element_state(optimizer_);
  balancer_ = std::make_unique<shard::LoadBalancer>(
      sharded, std::vector<state::ElementState*>{optimizer_state_.get()},
      shard::LoadBalanceOptions{.every = parallelism.balance_every,
                                .memory_limit_bytes = parallelism.balance_memory_limit});
}

void TrainStep::balance() {
  if (balancer_ == nullptr) return;
  optimizer_.zero_grad();
  balancer_->end_step();
}

std::int64_t TrainStep::count_targets(const data::StepData& data, std::int64_t step) {
  const std::int64_t count = sum_over_ranks(world_.group(), learnt_targets(data), step);
  if (count > 0) return count;
  throw base::Error(base::ErrorCode::kInvalidArgument,
                    fmt::format("step {}: no target of the whole global batch of {} sequences is "
                                "to be learnt; each step needs at least one that is not masked",
                                step, config_.training.global_batch_size));
}

double TrainStep::forward_backward(const data::StepData& data, std::int64_t targets) {
  // The engine averages over ranks; this makes every target of the global batch count alike,
  // whichever rank and micro-batch it is in.
  const double weight = world_.size() / static_cast<double>(targets);
  double loss_sum = 0;
  for (const data::Batch& batch : data.micro_batches) {
    const at::Tensor loss = model_->loss_sum(batch.tokens, batch.targets);
    (loss * weight).backward();
    loss_sum += loss.item<double>();
  }
  return loss_sum;
}

void TrainStep::require_finite(const StepReport& report) const {
  if (std::isfinite(report.loss) && std::isfinite(report.grad_norm)) return;
  throw base::Error(
      base::ErrorCode::kInvalidArgument,
      fmt::format("step {}: the loss is {} and the norm of its gradient {}: training has diverged; "
                  "lower optimizer.lr ({}) or training.max_norm ({}, 0 = no clipping), or raise "
                  "lr_scheduler.warmup_steps ({})",
                  report.step, report.loss, report.grad_norm, config_.optimizer.lr,
                  config_.training.max_norm, config_.lr_scheduler.warmup_steps));
}

void TrainStep::update(StepReport& report) {
  report.grad_norm = sharded_.grad_norm();
  require_finite(report);
  optimizer_.step(report.lr, clip_coefficient(config_.training.max_norm, report.grad_norm));
}

StepOutcome TrainStep::run(std::int64_t step, int stop_signal) {
  StepReport report{.step = step, .lr = schedule_.lr(step - 1), .tokens = tokens_per_step(config_)};
  StepMeter meter(sharded_, report);
  const data::StepData data = loader_.next();
  meter.end_phase(report.data_seconds);

  optimizer_.zero_grad();
  const std::int64_t targets = count_targets(data, step);
  meter.end_phase(report.exposed_comm_seconds);

  const double loss_sum = forward_backward(data, targets);
  if (balancer_ != nullptr) balancer_->note_memory();
  meter.end_phase(report.compute_seconds);

  const RankNote all = exchange(world_.group(),
                                {.loss_sum = loss_sum,
                                 .stop_signal = stop_signal,
                                 .peak_rss_bytes = peak_resident_bytes(),
                                 .peak_unsharded_bytes = meter.peak_unsharded_bytes()},
                                step);
  report.loss = all.loss_sum / static_cast<double>(targets);
  report.peak_rss_bytes = all.peak_rss_bytes;
  report.peak_unsharded_bytes = all.peak_unsharded_bytes;
  meter.end_phase(report.exposed_comm_seconds);

  update(report);
  meter.end_phase(report.optimizer_seconds);
  meter.finish();
  balance();
  report.optimizer_state_bytes = optim::state_bytes(optimizer_);
  return {report, all.stop_signal};
}

}  // namespace fullshard::trainer
