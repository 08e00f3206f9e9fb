#include "config/row.h"

// The schema itself. Sections and fields stand in the order in which help shows them.

namespace fullshard::config {

template <>
struct Names<base::DType> {
  static constexpr std::array<std::pair<base::DType, std::string_view>, 2> kTable = {
      {{base::DType::kFloat32, "float32"}, {base::DType::kFloat64, "float64"}}};
};

template <>
struct Names<Narrow> {
  static constexpr std::array<std::pair<Narrow, std::string_view>, 3> kTable = {
      {{Narrow::kSame, "same"}, {Narrow::kFloat32, "float32"}, {Narrow::kBFloat16, "bfloat16"}}};
};

template <>
struct Names<ActivationCheckpoint> {
  static constexpr std::array<std::pair<ActivationCheckpoint, std::string_view>, 3> kTable = {
      {{ActivationCheckpoint::kNone, "none"},
       {ActivationCheckpoint::kFull, "full"},
       {ActivationCheckpoint::kSelective, "selective"}}};
};

template <>
struct Names<ShardingStrategy> {
  static constexpr std::array<std::pair<ShardingStrategy, std::string_view>, 5> kTable = {
      {{ShardingStrategy::kFullShard, "FULL_SHARD"},
       {ShardingStrategy::kShardGradOp, "SHARD_GRAD_OP"},
       {ShardingStrategy::kShardOptimizerOnly, "SHARD_OPTIMIZER_ONLY"},
       {ShardingStrategy::kNoShard, "NO_SHARD"},
       {ShardingStrategy::kHybridShard, "HYBRID_SHARD"}}};
};

template <>
struct Names<Wrap> {
  static constexpr std::array<std::pair<Wrap, std::string_view>, 3> kTable = {
      {{Wrap::kBlocks, "blocks"}, {Wrap::kSize, "size"}, {Wrap::kNone, "none"}}};
};

template <>
struct Names<Backend> {
  static constexpr std::array<std::pair<Backend, std::string_view>, 4> kTable = {
      {{Backend::kAuto, "auto"},
       {Backend::kShm, "shm"},
       {Backend::kGloo, "gloo"},
       {Backend::kLocal, "local"}}};
};

template <>
struct Names<Toggle> {
  static constexpr std::array<std::pair<Toggle, std::string_view>, 3> kTable = {
      {{Toggle::kAuto, "auto"}, {Toggle::kOn, "on"}, {Toggle::kOff, "off"}}};
};

namespace {

using Rows = std::vector<Field>;

void add_place(Rows& rows) {
  rows.push_back(row(
      "job.rank", [](auto& c) -> auto& { return c.job.rank; }, "",
      "number of this process among the ranks of a job that something else starts; -1 = as its "
      "launcher says",
      at_least(-1)));
  rows.push_back(row(
      "job.world_size", [](auto& c) -> auto& { return c.job.world_size; }, "ranks",
      "ranks of that job; 0 = as its launcher says", at_least(0)));
  rows.push_back(row(
      "job.local_rank", [](auto& c) -> auto& { return c.job.local_rank; }, "",
      "number of this process among the ranks of this host; -1 = as its launcher says",
      at_least(-1)));
  rows.push_back(row(
      "job.local_world_size", [](auto& c) -> auto& { return c.job.local_world_size; }, "ranks",
      "ranks of that job on this host; 0 = as its launcher says", at_least(0)));
  rows.push_back(row(
      "job.master_addr", [](auto& c) -> auto& { return c.job.master_addr; }, "",
      "host of rank 0, where ranks find each other; empty = as the launcher says"));
}

void add_job(Rows& rows) {
  rows.push_back(row(
      "job.nproc_per_node", [](auto& c) -> auto& { return c.job.nproc_per_node; }, "ranks",
      "ranks to start on this host; 0 = one a core, up to 8, that split the global batch evenly",
      between(0, 1024)));
  rows.push_back(row(
      "job.master_port", [](auto& c) -> auto& { return c.job.master_port; }, "",
      "port on which ranks find each other; 0 = any free one, or what the launcher says",
      between(0, 65535)));
  rows.push_back(row(
      "job.threads_per_rank", [](auto& c) -> auto& { return c.job.threads_per_rank; }, "threads",
      "computing threads of each rank; 0 = OMP_NUM_THREADS if set, else an equal share of the "
      "cores",
      between(0, 1024)));
  add_place(rows);
}

void add_model(Rows& rows) {
  rows.push_back(choice(
      "model.name", [](auto& c) -> auto& { return c.model.name; }, {"gpt"}, "kind of model"));
  rows.push_back(row(
      "model.n_layers", [](auto& c) -> auto& { return c.model.n_layers; }, "blocks",
      "transformer blocks", between(1, 10'000)));
  rows.push_back(row(
      "model.dim", [](auto& c) -> auto& { return c.model.dim; }, "features",
      "width of the residual stream; a multiple of model.n_heads", between(1, 1'000'000)));
  rows.push_back(row(
      "model.n_heads", [](auto& c) -> auto& { return c.model.n_heads; }, "heads",
      "attention heads in a block", between(1, 10'000)));
  rows.push_back(row(
      "model.tie_embeddings", [](auto& c) -> auto& { return c.model.tie_embeddings; }, "",
      "use the token table as output head too"));
}

void add_training(Rows& rows) {
  rows.push_back(row(
      "training.seed", [](auto& c) -> auto& { return c.training.seed; }, "",
      "seed of initial weights and data order", at_least(0)));
  rows.push_back(row(
      "training.steps", [](auto& c) -> auto& { return c.training.steps; }, "steps",
      "optimizer steps to train for", at_least(1)));
  rows.push_back(row(
      "training.seq_len", [](auto& c) -> auto& { return c.training.seq_len; }, "tokens",
      "length of a sequence", between(1, 10'000'000)));
  rows.push_back(row(
      "training.global_batch_size", [](auto& c) -> auto& { return c.training.global_batch_size; },
      "sequences", "sequences in one step, over all ranks and micro-batches",
      between(1, 10'000'000)));
  rows.push_back(row(
      "training.gradient_accumulation_steps",
      [](auto& c) -> auto& { return c.training.gradient_accumulation_steps; }, "micro-batches",
      "micro-batches into which each rank cuts its share of a step; more need less memory",
      between(1, 1'000'000)));
  rows.push_back(row(
      "training.max_norm", [](auto& c) -> auto& { return c.training.max_norm; }, "",
      "clip the gradient's global L2 norm to this; 0 = do not clip", at_least(0)));
  rows.push_back(row(
      "training.dtype", [](auto& c) -> auto& { return c.training.dtype; }, "",
      "type of parameters, and of arithmetic unless mixed_precision_param says otherwise"));
  rows.push_back(row(
      "training.mixed_precision_param",
      [](auto& c) -> auto& { return c.training.mixed_precision_param; }, "",
      "type that parameters are gathered and computed in, while the optimizer keeps them in "
      "training.dtype; bfloat16 halves what is gathered"));
  rows.push_back(row(
      "training.mixed_precision_reduce",
      [](auto& c) -> auto& { return c.training.mixed_precision_reduce; }, "",
      "type that gradients travel between hosts in; same = as mixed_precision_param; they are "
      "added up in float32 at least"));
}

void add_activation_checkpoint(Rows& rows) {
  rows.push_back(row(
      "activation_checkpoint.mode", [](auto& c) -> auto& { return c.activation_checkpoint.mode; },
      "",
      "blocks of which backward computes the activations again, in place of keeping them: none; "
      "all of them; every selective_ac_option-th"));
  rows.push_back(row(
      "activation_checkpoint.selective_ac_option",
      [](auto& c) -> auto& { return c.activation_checkpoint.selective_ac_option; }, "blocks",
      "with mode selective: of this many blocks one is computed again; fewer need less memory and "
      "more time",
      between(1, 10'000)));
}

void add_optimizer(Rows& rows) {
  rows.push_back(choice(
      "optimizer.name", [](auto& c) -> auto& { return c.optimizer.name; }, {"adamw"},
      "update rule"));
  rows.push_back(row(
      "optimizer.lr", [](auto& c) -> auto& { return c.optimizer.lr; }, "", "peak learning rate",
      at_least(0)));
  rows.push_back(row(
      "optimizer.beta1", [](auto& c) -> auto& { return c.optimizer.beta1; }, "",
      "decay of the mean of gradients", fraction()));
  rows.push_back(row(
      "optimizer.beta2", [](auto& c) -> auto& { return c.optimizer.beta2; }, "",
      "decay of the mean of squared gradients", fraction()));
  rows.push_back(row(
      "optimizer.eps", [](auto& c) -> auto& { return c.optimizer.eps; }, "",
      "added to the denominator of the update", above(0)));
  rows.push_back(row(
      "optimizer.weight_decay", [](auto& c) -> auto& { return c.optimizer.weight_decay; }, "",
      "decoupled weight decay, multiplied by the learning rate", at_least(0)));
  rows.push_back(row(
      "optimizer.no_decay", [](auto& c) -> auto& { return c.optimizer.no_decay; }, "",
      "patterns (* and ?) of parameter names that do not decay"));
}

void add_lr_scheduler(Rows& rows) {
  rows.push_back(row(
      "lr_scheduler.warmup_steps", [](auto& c) -> auto& { return c.lr_scheduler.warmup_steps; },
      "steps", "steps of linear rise to the peak, before the cosine decay", at_least(0)));
  rows.push_back(row(
      "lr_scheduler.min_lr_factor", [](auto& c) -> auto& { return c.lr_scheduler.min_lr_factor; },
      "", "learning rate at the last step, as a fraction of the peak", between(0, 1)));
}

void add_parallelism(Rows& rows) {
  rows.push_back(row(
      "parallelism.sharding_strategy",
      [](auto& c) -> auto& { return c.parallelism.sharding_strategy; }, "",
      "what is sharded: everything; everything, but parameters stay from forward to backward; all "
      "but the parameters; nothing; everything inside each of the sets of ranks that "
      "data_parallel_replicate_degree makes"));
  rows.push_back(row(
      "parallelism.data_parallel_replicate_degree",
      [](auto& c) -> auto& { return c.parallelism.data_parallel_replicate_degree; }, "sets",
      "sets of ranks that hold all parameters each, for instance one a host; more means more "
      "memory "
      "and gathers among fewer ranks; divides the ranks",
      at_least(1)));
  rows.push_back(row(
      "parallelism.wrap", [](auto& c) -> auto& { return c.parallelism.wrap; }, "",
      "units: one a block; subtrees of at least min_unit_params; the whole model"));
  rows.push_back(row(
      "parallelism.min_unit_params", [](auto& c) -> auto& { return c.parallelism.min_unit_params; },
      "parameters", "smallest unit when parallelism.wrap is size", at_least(1)));
  rows.push_back(row(
      "parallelism.reshard_after_forward",
      [](auto& c) -> auto& { return c.parallelism.reshard_after_forward; }, "ranks",
      "over how many neighbouring ranks a unit is spread between its forward and its backward, "
      "where "
      "ranks do not share memory; 0 = all; 1 = units stay whole",
      at_least(0)));
  rows.push_back(row(
      "parallelism.shard_optimizer_over_replicas",
      [](auto& c) -> auto& { return c.parallelism.shard_optimizer_over_replicas; }, "",
      "divide gradients and optimizer state over all ranks, not only over those that share one set "
      "of parameters; saves memory, costs a gather of updates between the sets"));
  rows.push_back(row(
      "parallelism.forward_prefetch",
      [](auto& c) -> auto& { return c.parallelism.forward_prefetch; }, "units",
      "units gathered ahead in forward; -1 = 1 where gathering moves bytes, else 0", at_least(-1)));
  rows.push_back(row(
      "parallelism.backward_prefetch",
      [](auto& c) -> auto& { return c.parallelism.backward_prefetch; }, "units",
      "units gathered ahead in backward; -1 = 1 where gathering moves bytes, else 0",
      at_least(-1)));
  rows.push_back(row(
      "parallelism.max_unsharded_bytes",
      [](auto& c) -> auto& { return c.parallelism.max_unsharded_bytes; }, "bytes",
      "most that a rank has gathered at a time; 0 = no limit", at_least(0)));
  rows.push_back(row(
      "parallelism.balance_every", [](auto& c) -> auto& { return c.parallelism.balance_every; },
      "steps",
      "after how many steps the ranks compare how long they compute and how much memory they use, "
      "and move shares to those that wait; 0 = never",
      at_least(0)));
  rows.push_back(row(
      "parallelism.balance_memory_limit",
      [](auto& c) -> auto& { return c.parallelism.balance_memory_limit; }, "bytes",
      "memory of a rank above which balancing moves shares away from it; 0 = no limit",
      at_least(0)));
}

void add_comm(Rows& rows) {
  rows.push_back(row(
      "comm.backend", [](auto& c) -> auto& { return c.comm.backend; }, "",
      "ranks as processes that share memory (shm) or send messages over TCP (gloo), or as threads "
      "of one process (local); auto: shm on one host, gloo on several"));
  rows.push_back(row(
      "comm.timeout_seconds", [](auto& c) -> auto& { return c.comm.timeout_seconds; }, "seconds",
      "longest wait for another rank before the run fails", above(0)));
  rows.push_back(row(
      "comm.heartbeat_timeout_seconds",
      [](auto& c) -> auto& { return c.comm.heartbeat_timeout_seconds; }, "seconds",
      "how long a rank's process, or its host, may show no sign of life before the run fails, at "
      "least 1; 0 = as long as comm.timeout_seconds allows",
      at_least(0)));
  rows.push_back(row(
      "comm.interface", [](auto& c) -> auto& { return c.comm.interface; }, "",
      "network interface towards ranks on other hosts, such as eth0; empty = GLOO_SOCKET_IFNAME, "
      "else the one that leads to the job's store"));
  rows.push_back(row(
      "comm.threads", [](auto& c) -> auto& { return c.comm.threads; }, "threads",
      "threads of each rank that add up gradients; 0 = those that compute", between(0, 1024)));
  rows.push_back(row(
      "comm.trace_folder", [](auto& c) -> auto& { return c.comm.trace_folder; }, "",
      "folder, made when needed, where ranks write what they did last: when they lose each other, "
      "and on SIGUSR2; 'fullshard doctor trace' reads it; empty = nothing is written"));
  rows.push_back(row(
      "comm.allgather_bucket_size", [](auto& c) -> auto& { return c.comm.allgather_bucket_size; },
      "bytes",
      "neighbouring units of at most this together are gathered in one collective, where gathering "
      "moves bytes; 0 = each alone",
      at_least(0)));
  rows.push_back(row(
      "comm.reduce_scatter_bucket_size",
      [](auto& c) -> auto& { return c.comm.reduce_scatter_bucket_size; }, "bytes",
      "the same of reductions", at_least(0)));
  rows.push_back(row(
      "comm.gradient_predivide_factor",
      [](auto& c) -> auto& { return c.comm.gradient_predivide_factor; }, "",
      "gradients are divided by this before they travel and multiplied by it afterwards",
      above(0)));
}

void add_data(Rows& rows) {
  rows.push_back(row(
      "data.path", [](auto& c) -> auto& { return c.data.path; }, "",
      "UTF-8 text file to train on; empty = the King James Bible of Debian's bible-kjv"));
  rows.push_back(row(
      "data.prefetch", [](auto& c) -> auto& { return c.data.prefetch; }, "batches",
      "batches prepared ahead in the background", between(1, 1024)));
  rows.push_back(row(
      "data.validation_fraction", [](auto& c) -> auto& { return c.data.validation_fraction; }, "",
      "share of the text, at its end, kept for validation", fraction()));
}

void add_validation(Rows& rows) {
  rows.push_back(row(
      "validation.enable", [](auto& c) -> auto& { return c.validation.enable; }, "",
      "measure the loss on the validation text"));
  rows.push_back(row(
      "validation.freq", [](auto& c) -> auto& { return c.validation.freq; }, "steps",
      "steps between validations; 0 = only after the last step", at_least(0)));
  rows.push_back(row(
      "validation.steps", [](auto& c) -> auto& { return c.validation.steps; }, "batches",
      "global batches in one validation", between(1, 1'000'000)));
}

void add_metrics(Rows& rows) {
  rows.push_back(row(
      "metrics.log_freq", [](auto& c) -> auto& { return c.metrics.log_freq; }, "steps",
      "steps between printed lines", at_least(1)));
  rows.push_back(row(
      "metrics.jsonl", [](auto& c) -> auto& { return c.metrics.jsonl; }, "",
      "file that gets one JSON object for every step; empty = none"));
  rows.push_back(row(
      "metrics.progress", [](auto& c) -> auto& { return c.metrics.progress; }, "",
      "progress bar; auto = when the console is a terminal"));
}

void add_generation(Rows& rows) {
  rows.push_back(row(
      "generation.bytes", [](auto& c) -> auto& { return c.generation.bytes; }, "bytes",
      "text to generate after training; 0 = none", between(0, 1'000'000'000)));
  rows.push_back(row(
      "generation.temperature", [](auto& c) -> auto& { return c.generation.temperature; }, "",
      "0 = always the likeliest byte; larger is more random", at_least(0)));
  rows.push_back(row(
      "generation.prompt", [](auto& c) -> auto& { return c.generation.prompt; }, "",
      "text that generation continues"));
}

Rows make_table() {
  Rows rows;
  add_job(rows);
  add_model(rows);
  add_training(rows);
  add_activation_checkpoint(rows);
  add_optimizer(rows);
  add_lr_scheduler(rows);
  add_parallelism(rows);
  add_comm(rows);
  add_data(rows);
  add_validation(rows);
  add_metrics(rows);
  add_generation(rows);
  return rows;
}

}  // namespace

std::span<const Field> schema() {
  static const Rows table = make_table();
  return table;
}

}  // namespace fullshard::config
