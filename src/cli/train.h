#pragma once

#include "cli/command_line.h"

namespace fullshard::cli {

/// Runs `fullshard train`: as one rank when a launcher started this process as such, as the whole
/// job when it has one rank or its ranks are threads, as the launcher of its ranks otherwise.
/// Returns the exit code; throws base::Error for what is found wrong before training.
int train(const TrainCommand& command);

}  // namespace fullshard::cli
