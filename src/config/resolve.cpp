#include "fullshard/config/resolve.h"

#include <fmt/format.h>

#include <algorithm>

#include "fullshard/base/error.h"

namespace fullshard::config {
namespace {

/// Sequences that one step must hold a multiple of; 64 bits, as both factors come from users.
std::int64_t batch_quantum(const TrainConfig& config, int ranks) {
  return std::int64_t{ranks} * config.training.gradient_accumulation_steps;
}

int default_ranks(const TrainConfig& config, int cores) {
  int ranks = std::clamp(cores, 1, kMostDefaultRanks);
  while (ranks > 1 && config.training.global_batch_size % batch_quantum(config, ranks) != 0) {
    --ranks;
  }
  return ranks;
}

/// "96 or 100", the multiples of `quantum` around `value`; only the upper one below the first.
std::string nearest_multiples(std::int64_t value, std::int64_t quantum) {
  const std::int64_t below = value / quantum * quantum;
  return below == 0 ? fmt::format("{}", quantum) : fmt::format("{} or {}", below, below + quantum);
}

[[noreturn]] void fail(const std::string& message) {
  throw base::Error(base::ErrorCode::kConfiguration, message);
}

void validate_mesh(const ParallelismConfig& parallelism, int ranks) {
  const int sets = parallelism.data_parallel_replicate_degree;
  if (ranks % sets != 0) {
    fail(fmt::format(
        "parallelism.data_parallel_replicate_degree ({}) must divide the number of ranks ({})",
        sets, ranks));
  }
  if (parallelism.sharding_strategy == ShardingStrategy::kHybridShard && sets == 1) {
    fail(
        "parallelism.sharding_strategy is HYBRID_SHARD, which needs "
        "parallelism.data_parallel_replicate_degree above 1; set it, or use FULL_SHARD");
  }
  const int smaller = parallelism.reshard_after_forward;
  if (smaller > 0 && ranks / sets % smaller != 0) {
    fail(fmt::format(
        "parallelism.reshard_after_forward ({}) must divide the {} ranks that share one "
        "set of parameters",
        smaller, ranks / sets));
  }
}

void validate_activation_checkpoint(const TrainConfig& config) {
  const ActivationCheckpointConfig& chosen = config.activation_checkpoint;
  if (chosen.mode != ActivationCheckpoint::kSelective) return;
  if (chosen.selective_ac_option <= config.model.n_layers) return;
  fail(fmt::format(
      "activation_checkpoint.selective_ac_option ({}) is above model.n_layers ({}), so that no "
      "block would be computed again; use {} or less, or mode none",
      chosen.selective_ac_option, config.model.n_layers, config.model.n_layers));
}

}  // namespace

TrainConfig resolve(TrainConfig config, int cores) {
  JobConfig& job = config.job;
  if (job.nproc_per_node == 0) job.nproc_per_node = default_ranks(config, cores);
  if (job.threads_per_rank == 0) job.threads_per_rank = std::max(1, cores / job.nproc_per_node);
  return config;
}

void validate(const TrainConfig& config, int ranks) {
  validate_mesh(config.parallelism, ranks);
  validate_activation_checkpoint(config);
  const double heartbeat = config.comm.heartbeat_timeout_seconds;
  if (heartbeat != 0 && heartbeat < 1) {
    fail(fmt::format("comm.heartbeat_timeout_seconds ({}) must be 0 or at least 1", heartbeat));
  }
  const ModelConfig& model = config.model;
  if (model.dim % model.n_heads != 0) {
    fail(fmt::format("model.dim ({}) must be a multiple of model.n_heads ({}); use {}", model.dim,
                     model.n_heads, nearest_multiples(model.dim, model.n_heads)));
  }
  const int batch = config.training.global_batch_size;
  const std::int64_t quantum = batch_quantum(config, ranks);
  if (batch % quantum != 0) {
    fail(
        fmt::format("training.global_batch_size ({}) must be a multiple of {} ranks x "
                    "training.gradient_accumulation_steps ({}) = {}; use {}",
                    batch, ranks, config.training.gradient_accumulation_steps, quantum,
                    nearest_multiples(batch, quantum)));
  }
}

}  // namespace fullshard::config
