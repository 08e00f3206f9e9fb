#include "shard/strategy.h"

namespace fullshard::shard {

std::string_view to_string(ShardingStrategy strategy) {
  switch (strategy) {
    case ShardingStrategy::FULL_SHARD: return "FULL_SHARD";
    case ShardingStrategy::SHARD_GRAD_OP: return "SHARD_GRAD_OP";
    case ShardingStrategy::SHARD_OPTIMIZER_ONLY: return "SHARD_OPTIMIZER_ONLY";
    case ShardingStrategy::NO_SHARD: return "NO_SHARD";
    case ShardingStrategy::HYBRID_SHARD: return "HYBRID_SHARD";
  }
  return "";
}

residency::Stay stay_of(ShardingStrategy strategy) {
  switch (strategy) {
    case ShardingStrategy::SHARD_OPTIMIZER_ONLY: return residency::Stay::kForGood;
    case ShardingStrategy::NO_SHARD: return residency::Stay::kNeverAway;
    default: return residency::Stay::kBySchedule;
  }
}

}  // namespace fullshard::shard
