#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fullshard/base/dtype.h"

// The effective configuration of a training run: plain data that the command line, the launcher and
// the trainer share. Every field has a row in the schema table (schema.h), which gives its unit,
// range and meaning; the initial values below are the defaults that help and documentation show.

namespace fullshard::config {

/// What stays sharded between uses; the names are PyTorch's.
enum class ShardingStrategy {
  kFullShard,
  kShardGradOp,
  kNoShard,
  kHybridShard,
  kShardOptimizerOnly
};

/// How a model is cut into units.
enum class Wrap {
  kBlocks,  ///< every block of the model is a unit, the root takes the rest
  kSize,    ///< subtrees of at least `min_unit_params` parameters
  kNone,    ///< the whole model is one unit
};

/// How ranks exchange data.
enum class Backend {
  kAuto,   ///< shared memory when all ranks are on one host, Gloo otherwise
  kShm,    ///< ranks are processes of one host
  kGloo,   ///< ranks are processes that send messages, on any hosts
  kLocal,  ///< ranks are threads of one process
};

/// Which blocks' activations backward computes again.
enum class ActivationCheckpoint {
  kNone,
  kFull,       ///< every block's
  kSelective,  ///< every `selective_ac_option`-th block's
};

/// What parameters are gathered and computed in, or gradients travel in, where that is not what
/// their shards are in.
enum class Narrow { kSame, kFloat32, kBFloat16 };

/// Something that depends on the console unless it is set.
enum class Toggle { kAuto, kOn, kOff };

struct JobConfig {
  int nproc_per_node = 0;    ///< 0 = chosen by resolve()
  int master_port = 0;       ///< 0 = any free port
  int threads_per_rank = 0;  ///< 0 = chosen by resolve()

  // Where this process is in a job that something else starts; by default its variables say so.
  int rank = -1;             ///< -1 = not given
  int world_size = 0;        ///< 0 = not given
  int local_rank = -1;       ///< -1 = not given
  int local_world_size = 0;  ///< 0 = not given
  std::string master_addr;   ///< empty = not given
};

struct ModelConfig {
  std::string name = "gpt";
  int n_layers = 3;
  int dim = 128;
  int n_heads = 4;
  bool tie_embeddings = true;
};

struct TrainingConfig {
  std::int64_t seed = 0;
  std::int64_t steps = 900;
  int seq_len = 64;
  int global_batch_size =
      32;  ///< sequences in one optimizer step, over all ranks and micro-batches
  int gradient_accumulation_steps = 1;
  double max_norm = 1.0;  ///< 0 = no clipping
  base::DType dtype = base::DType::kFloat32;
  Narrow mixed_precision_param = Narrow::kSame;   ///< kSame: as dtype
  Narrow mixed_precision_reduce = Narrow::kSame;  ///< kSame: as mixed_precision_param
};

/// Named as torchtitan's.
struct ActivationCheckpointConfig {
  ActivationCheckpoint mode = ActivationCheckpoint::kNone;
  int selective_ac_option = 2;
};

struct OptimizerConfig {
  std::string name = "adamw";
  double lr = 5e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  std::vector<std::string> no_decay = {"*.bias", "*norm*"};  ///< globs over parameter names
};

struct LrSchedulerConfig {
  std::int64_t warmup_steps = 50;
  double min_lr_factor = 0.05;
};

struct ParallelismConfig {
  ShardingStrategy sharding_strategy = ShardingStrategy::kFullShard;
  Wrap wrap = Wrap::kBlocks;
  std::int64_t min_unit_params = 100'000;
  int data_parallel_replicate_degree = 1;
  int reshard_after_forward = 0;
  bool shard_optimizer_over_replicas = false;
  int forward_prefetch = -1;  ///< -1 = as fits the backend
  int backward_prefetch = -1;
  std::int64_t max_unsharded_bytes = 0;   ///< 0 = no limit
  int balance_every = 0;                  ///< 0 = shares stay as they are
  std::int64_t balance_memory_limit = 0;  ///< 0 = no limit
};

struct CommConfig {
  Backend backend = Backend::kAuto;
  double timeout_seconds = 300;
  double heartbeat_timeout_seconds = 30;     ///< 0 = only the other timeout counts; else at least 1
  std::string interface;                     ///< empty = the one that leads to the job's store
  int threads = 0;                           ///< 0 = as many as compute
  std::string trace_folder = "comm_traces";  ///< empty = no flight records
  std::int64_t allgather_bucket_size = 0;
  std::int64_t reduce_scatter_bucket_size = 0;
  double gradient_predivide_factor = 1;
};

struct DataConfig {
  std::string path;  ///< empty = the King James Bible of Debian's bible-kjv
  int prefetch = 2;
  double validation_fraction = 0.05;
};

struct ValidationConfig {
  bool enable = true;
  std::int64_t freq = 300;
  int steps = 8;
};

struct MetricsConfig {
  std::int64_t log_freq = 25;
  std::string jsonl;  ///< empty = no file
  Toggle progress = Toggle::kAuto;
};

struct GenerationConfig {
  int bytes = 200;  ///< 0 = generate nothing
  double temperature = 0.8;
  std::string prompt = "In the beginning ";
};

struct TrainConfig {
  JobConfig job;
  ModelConfig model;
  TrainingConfig training;
  ActivationCheckpointConfig activation_checkpoint;
  OptimizerConfig optimizer;
  LrSchedulerConfig lr_scheduler;
  ParallelismConfig parallelism;
  CommConfig comm;
  DataConfig data;
  ValidationConfig validation;
  MetricsConfig metrics;
  GenerationConfig generation;
};

}  // namespace fullshard::config
