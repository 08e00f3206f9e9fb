#pragma once

#include <optional>
#include <string>

#include "fullshard/comm/world.h"
#include "fullshard/config/train_config.h"
#include "fullshard/shard/sharded_module.h"
#include "fullshard/trainer/train.h"
#include "trainer/training_text.h"

namespace fullshard::trainer {

/// What is about to be trained, on what, and how, as lines. `peak_flops` is of all ranks together.
std::string banner(const config::TrainConfig& config, const comm::World& world,
                   const shard::ShardedModule& sharded, const TrainingText& text,
                   double peak_flops);

/// Totals that only the whole run has.
struct RunTotals {
  double seconds = 0;       ///< from the first step's begin to the last one's end, with validation
  double step_seconds = 0;  ///< of training steps alone
  std::int64_t tokens = 0;
  std::int64_t peak_rss_bytes = 0;
  std::int64_t peak_unsharded_bytes = 0;
};

/// What a run came to, as lines.
std::string summary(const TrainResult& result, const RunTotals& totals, std::int64_t total_steps);

}  // namespace fullshard::trainer
