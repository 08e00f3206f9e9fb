#pragma once

#include "fullshard/config/train_config.h"

namespace fullshard::config {

/// Most ranks that a run starts by itself.
inline constexpr int kMostDefaultRanks = 8;

/// Settles what was left to the machine, on a host where this job may use `cores` cores:
/// job.nproc_per_node becomes the largest number of ranks up to the cores and kMostDefaultRanks
/// among which the global batch can be split evenly; job.threads_per_rank an equal share of the
/// cores, at least 1. Values that were set stay as they are.
TrainConfig resolve(TrainConfig config, int cores);

/// Checks what no single field can show, for a job of `ranks` ranks altogether. Throws
/// base::Error(kConfiguration) that names the fields, their values and values that would fit.
void validate(const TrainConfig& config, int ranks);

}  // namespace fullshard::config
