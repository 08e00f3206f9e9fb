#pragma once

#include "cli/command_line.h"

namespace fullshard::cli {

/// Runs `fullshard bench step`. Returns the exit code; throws base::Error.
int bench_step(const BenchStepCommand& command);

/// One measurement of `bench step`: in this process when it takes one, or when a launcher has
/// started this process as a rank; otherwise as the launcher of its ranks.
int measure_step(const MeasureStepCommand& command);

/// Runs `fullshard bench collectives`. Returns the exit code; throws base::Error.
int bench_collectives(const BenchCollectivesCommand& command);

/// One run of it: as one of its ranks, or as the launcher of them.
int measure_collectives(const MeasureCollectivesCommand& command);

}  // namespace fullshard::cli
