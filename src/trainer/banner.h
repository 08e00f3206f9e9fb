#pragma once

#include <string>

#include "fullshard/comm/world.h"
#include "fullshard/config/train_config.h"
#include "fullshard/shard/sharded_module.h"
#include "fullshard/trainer/train.h"
#include "trainer/run_totals.h"
#include "trainer/training_text.h"

namespace fullshard::trainer {

/// What is about to be trained, on what, and how, as lines. `peak_flops` is of all ranks together.
std::string banner(const config::TrainConfig& config, const comm::World& world,
                   const shard::ShardedModule& sharded, const TrainingText& text,
                   double peak_flops);

/// What a run came to, as lines.
std::string summary(const TrainResult& result, const RunTotals& totals, std::int64_t total_steps);

}  // namespace fullshard::trainer
