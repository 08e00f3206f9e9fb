#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "fullshard/comm/world.h"
#include "fullshard/config/train_config.h"
#include "fullshard/trainer/train.h"
#include "support/temporary_folder.h"

// Runs that take a fraction of a second, with ranks as threads.

namespace fullshard::testing {

std::string read_file(const std::string& path);

/// 12 kB of text in which there is something to learn.
std::string sample_text();

/// Two blocks of width 32 on sequences of 16 bytes of that text, 12 in a batch, 20 steps.
config::TrainConfig small_config(const TemporaryFolder& folder);

/// Results by rank of training with `world` ranks; what a rank gets can depend on its number.
std::vector<trainer::TrainResult> run_ranks(
    int world, const std::function<trainer::TrainResult(comm::World&)>& rank);

/// The result that all ranks of such a run agree on.
trainer::TrainResult run_small(const config::TrainConfig& config, int world,
                               const trainer::RunContext& context = {});

}  // namespace fullshard::testing
