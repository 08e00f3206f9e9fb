#pragma once

#include <cstdint>
#include <memory>

#include "fullshard/comm/world.h"
#include "fullshard/config/train_config.h"
#include "fullshard/data/batch_loader.h"
#include "fullshard/models/gpt.h"
#include "fullshard/optim/adamw.h"
#include "fullshard/optim/element_state.h"
#include "fullshard/optim/warmup_cosine.h"
#include "fullshard/shard/load_balancer.h"
#include "fullshard/shard/sharded_module.h"
#include "trainer/step_report.h"

namespace fullshard::trainer {

/// A finished step, and whether some rank was asked to stop before the next.
struct StepOutcome {
  StepReport report;
  int stop_signal = 0;
};

/// Takes optimizer steps one after another: batch, forward and backward of its micro-batches, the
/// global loss and norm, clipping, update. Loss and gradient are means over the targets of the
/// whole global batch that are to be learnt, however many of them a rank has.
class TrainStep {
 public:
  /// `config`, `world` and `sharded` must outlive it. Collective.
  TrainStep(const config::TrainConfig& config, comm::World& world, models::Gpt model,
            const shard::ShardedModule& sharded, std::shared_ptr<const data::TokenSource> text);

  /// Step `step`, counted from 1; `stop_signal` is what this rank was told. Collective. Throws
  /// kInvalidArgument on all ranks, before any parameter changes, when loss or norm is not finite
  /// or no target is to be learnt.
  StepOutcome run(std::int64_t step, int stop_signal);

  /// Samples that make up one pass over the text.
  std::int64_t samples_per_epoch() const { return windows_->per_epoch(); }

 private:
  std::int64_t count_targets(const data::StepData& data, std::int64_t step);
  double forward_backward(const data::StepData& data, std::int64_t targets);
  void update(StepReport& report);
  void balance();
  void require_finite(const StepReport& report) const;

  const config::TrainConfig& config_;
  comm::World& world_;
  models::Gpt model_;
  const shard::ShardedModule& sharded_;
  optim::AdamW optimizer_;
  std::unique_ptr<state::ElementState> optimizer_state_;
  std::unique_ptr<shard::LoadBalancer> balancer_;  // null where shares stay as they are
  optim::WarmupCosine schedule_;
  std::shared_ptr<const data::Windows> windows_;
  data::BatchLoader loader_;
};

}  // namespace fullshard::trainer
