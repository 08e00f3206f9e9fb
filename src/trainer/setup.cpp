#include "trainer/setup.h"

#include <ATen/Context.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "fullshard/data/token_source.h"

namespace fullshard::trainer {
namespace {

shard::ShardingStrategy strategy_of(config::ShardingStrategy strategy) {
  switch (strategy) {
    case config::ShardingStrategy::kFullShard: return shard::ShardingStrategy::FULL_SHARD;
    case config::ShardingStrategy::kShardGradOp: return shard::ShardingStrategy::SHARD_GRAD_OP;
    case config::ShardingStrategy::kHybridShard: return shard::ShardingStrategy::HYBRID_SHARD;
    case config::ShardingStrategy::kShardOptimizerOnly:
      return shard::ShardingStrategy::SHARD_OPTIMIZER_ONLY;
    case config::ShardingStrategy::kNoShard: break;
  }
  return shard::ShardingStrategy::NO_SHARD;
}

shard::WrapPolicy policy_of(const config::ParallelismConfig& parallelism) {
  switch (parallelism.wrap) {
    case config::Wrap::kBlocks: return shard::wrap_modules<models::BlockImpl>();
    case config::Wrap::kSize: return shard::size_based(parallelism.min_unit_params);
    case config::Wrap::kNone: break;
  }
  return shard::root_only();
}

std::optional<at::ScalarType> dtype_of(config::Narrow type) {
  switch (type) {
    case config::Narrow::kSame: break;
    case config::Narrow::kFloat32: return at::kFloat;
    case config::Narrow::kBFloat16: return at::kBFloat16;
  }
  return std::nullopt;
}

std::int64_t recompute_every(const config::ActivationCheckpointConfig& config) {
  switch (config.mode) {
    case config::ActivationCheckpoint::kNone: break;
    case config::ActivationCheckpoint::kFull: return 1;
    case config::ActivationCheckpoint::kSelective: return config.selective_ac_option;
  }
  return 0;
}

}  // namespace

models::GptOptions gpt_options(const config::TrainConfig& config) {
  return {.vocab_size = data::kByteVocabulary,
          .seq_len = config.training.seq_len,
          .dim = config.model.dim,
          .n_layers = config.model.n_layers,
          .n_heads = config.model.n_heads,
          .tie_embeddings = config.model.tie_embeddings,
          .recompute_every = recompute_every(config.activation_checkpoint)};
}

shard::FullyShardOptions shard_options(const config::TrainConfig& config) {
  shard::FullyShardOptions options;
  options.auto_wrap_policy = policy_of(config.parallelism);
  const config::ParallelismConfig& parallelism = config.parallelism;
  options.sharding_strategy = strategy_of(parallelism.sharding_strategy);
  options.max_unsharded_bytes = parallelism.max_unsharded_bytes;
  if (parallelism.forward_prefetch >= 0) options.forward_prefetch = parallelism.forward_prefetch;
  if (parallelism.backward_prefetch >= 0) options.backward_prefetch = parallelism.backward_prefetch;
  options.reshard_after_forward = parallelism.reshard_after_forward;
  options.shard_optimizer_over_replicas = parallelism.shard_optimizer_over_replicas;
  options.gather_bucket_bytes = config.comm.allgather_bucket_size;
  options.reduce_bucket_bytes = config.comm.reduce_scatter_bucket_size;
  options.gradient_predivide_factor = config.comm.gradient_predivide_factor;
  options.mixed_precision.param_dtype = dtype_of(config.training.mixed_precision_param);
  options.mixed_precision.reduce_dtype = dtype_of(config.training.mixed_precision_reduce);
  return options;
}

comm::Mesh mesh_of(const comm::World& world, const config::TrainConfig& config) {
  return world.mesh({.replicate = config.parallelism.data_parallel_replicate_degree});
}

optim::AdamWOptions adamw_options(const config::TrainConfig& config) {
  const config::OptimizerConfig& optimizer = config.optimizer;
  return {.lr = optimizer.lr,
          .beta1 = optimizer.beta1,
          .beta2 = optimizer.beta2,
          .eps = optimizer.eps,
          .weight_decay = optimizer.weight_decay};
}

std::vector<optim::GroupRule> group_rules(const config::TrainConfig& config) {
  std::vector<optim::GroupRule> rules;
  for (const std::string& pattern : config.optimizer.no_decay) {
    optim::GroupRule rule;
    rule.pattern = pattern;
    rule.weight_decay = 0.0;
    rules.push_back(rule);
  }
  return rules;
}

optim::WarmupCosine lr_schedule(const config::TrainConfig& config) {
  const std::int64_t steps = config.training.steps;
  return {.base_lr = config.optimizer.lr,
          .warmup_steps = std::min(config.lr_scheduler.warmup_steps, steps - 1),
          .total_steps = steps,
          .min_lr_ratio = config.lr_scheduler.min_lr_factor};
}

data::LoaderOptions loader_options(const config::TrainConfig& config, const comm::World& world) {
  return {.global_batch_size = config.training.global_batch_size,
          .micro_batches = config.training.gradient_accumulation_steps,
          .rank = world.rank(),
          .world = world.size(),
          .prefetch = config.data.prefetch};
}

data::ValidationOptions validation_options(const config::TrainConfig& config,
                                           const comm::World& world) {
  const std::int64_t batch = config.training.global_batch_size;
  const std::int64_t pieces =
      std::int64_t{world.size()} * config.training.gradient_accumulation_steps;
  return {.seq_len = config.training.seq_len,
          .max_samples = batch * config.validation.steps,
          .batch_size = std::max<std::int64_t>(1, batch / pieces),
          .rank = world.rank(),
          .world = world.size()};
}

models::Gpt make_model(const config::TrainConfig& config) {
  // Torch's default generator belongs to the process: ranks that are threads take turns.
  static std::mutex turn;
  const std::lock_guard lock(turn);
  at::manual_seed(static_cast<std::uint64_t>(config.training.seed));
  models::Gpt model(gpt_options(config));
  if (config.training.dtype == base::DType::kFloat64) model->to(at::kDouble);
  return model;
}

std::int64_t tokens_per_step(const config::TrainConfig& config) {
  return std::int64_t{config.training.global_batch_size} * config.training.seq_len;
}

}  // namespace fullshard::trainer
