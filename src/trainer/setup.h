#pragma once

#include <cstdint>
#include <vector>

#include "fullshard/comm/world.h"
#include "fullshard/config/train_config.h"
#include "fullshard/data/batch_loader.h"
#include "fullshard/data/validation.h"
#include "fullshard/models/gpt.h"
#include "fullshard/optim/adamw.h"
#include "fullshard/optim/warmup_cosine.h"
#include "fullshard/shard/options.h"

// What the configuration means to each room below: nothing here acts, but for make_model.

namespace fullshard::trainer {

models::GptOptions gpt_options(const config::TrainConfig& config);
shard::FullyShardOptions shard_options(const config::TrainConfig& config);
/// Collective. How the ranks are arranged.
comm::Mesh mesh_of(const comm::World& world, const config::TrainConfig& config);

optim::AdamWOptions adamw_options(const config::TrainConfig& config);

/// The names that do not decay; a pattern without a parameter is an error of the optimizer.
std::vector<optim::GroupRule> group_rules(const config::TrainConfig& config);

/// A warm-up that does not fit into the run is cut to what does.
optim::WarmupCosine lr_schedule(const config::TrainConfig& config);

data::LoaderOptions loader_options(const config::TrainConfig& config, const comm::World& world);
data::ValidationOptions validation_options(const config::TrainConfig& config,
                                           const comm::World& world);

/// The untrained model, with the same values wherever it is called: they depend on the seed alone.
/// Any thread.
models::Gpt make_model(const config::TrainConfig& config);

/// Tokens of one optimizer step over all ranks.
std::int64_t tokens_per_step(const config::TrainConfig& config);

}  // namespace fullshard::trainer
