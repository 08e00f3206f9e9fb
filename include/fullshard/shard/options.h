#pragma once

#include <cstdint>

#include "fullshard/shard/wrap_policy.h"

namespace fullshard::shard {

/// What is split over the ranks of the shard group. Names and meaning follow PyTorch FSDP.
enum class ShardingStrategy {
  FULL_SHARD,     ///< parameters, gradients, optimizer state; parameters evicted after forward
  SHARD_GRAD_OP,  ///< the same, but parameters stay gathered from forward to the end of backward
  NO_SHARD,       ///< every rank holds everything; only gradients are averaged (data parallel)
};

/// How a model is sharded. The defaults suit a model that nobody has tuned.
struct FullyShardOptions {
  /// Which modules become units, that is, are gathered and freed together. Smaller units need less
  /// memory and make more collectives. Default: chosen from the model's structure and sizes.
  WrapPolicy auto_wrap_policy = automatic();

  /// Less sharding means more memory and fewer gathers. Default: everything sharded.
  ShardingStrategy sharding_strategy = ShardingStrategy::FULL_SHARD;

  /// Start from rank 0's parameters and buffers on every rank. Off, each rank gives its own shard
  /// of what it holds, and ranks whose values differ are an error. Default: on.
  bool sync_module_states = true;

  /// Upper bound of bytes gathered at once on a rank, 0 for none. A bound that cannot hold one unit
  /// is an error; a tight one costs additional gathers.
  std::int64_t max_unsharded_bytes = 0;
};

}  // namespace fullshard::shard
