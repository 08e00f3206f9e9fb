#include "fullshard/planner/input.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "fullshard/base/error.h"
#include "fullshard/base/text.h"
#include "fullshard/config/resolve.h"
#include "fullshard/config/schema.h"
#include "fullshard/planner/measured.h"

namespace fullshard::planner {
namespace {

constexpr std::int64_t kByteVocabulary = 256;  // of the trainer's data
constexpr double kQuietShare = 0.05;           // above it bench says that the machine was not quiet
constexpr double kGiga = 1e9;
constexpr double kMicro = 1e-6;

[[noreturn]] void reject(const std::string& message) {
  throw base::Error(base::ErrorCode::kUsage, message);
}

ModelKind parse_kind(const std::string& text) {
  if (text == "decoder") return ModelKind::kDecoder;
  if (text == "encoder") return ModelKind::kEncoder;
  reject(fmt::format("--kind: found \"{}\"; expected one of decoder, encoder", text));
}

ModelShape trainers_model(const config::TrainConfig& config) {
  return {.name = config.model.name,
          .layers = config.model.n_layers,
          .dim = config.model.dim,
          .heads = config.model.n_heads,
          .vocab = kByteVocabulary,
          .seq = config.training.seq_len,
          .tie_embeddings = config.model.tie_embeddings};
}

// Sequences of a rank as the benchmarks of docs/benchmarks.md have them.
std::int64_t batch_of_known(const std::string& model) {
  if (model == "bench-a") return 2;
  return model == "bench-c" ? 4 : 1;
}

class Settler {
 public:
  explicit Settler(const Input& input) : input_(input) {}

  SettledJob run() {
    set_model();
    set_machines();
    set_rates();
    set_precision();
    set_batch();
    validate(job());
    if (input_.is_configured && input_.model.empty()) set_configured();
    return std::move(settled_);
  }

 private:
  Job& job() { return settled_.job; }
  Machines& machines() { return settled_.job.machines; }
  void assume(std::string what) { settled_.assumed.push_back(std::move(what)); }

  void set_model() {
    ModelShape& shape = job().model;
    shape = input_.model.empty() ? trainers_model(input_.config) : named_model(input_.model);
    if (!input_.kind.empty()) shape.kind = parse_kind(input_.kind);
    const std::pair<std::int64_t&, const std::optional<std::int64_t>&> sizes[] = {
        {shape.layers, input_.layers}, {shape.dim, input_.dim}, {shape.heads, input_.heads},
        {shape.vocab, input_.vocab},   {shape.seq, input_.seq}, {shape.mlp_ratio, input_.mlp_ratio},
        {shape.patch, input_.patch}};
    bool changed = !input_.kind.empty() || input_.untied;
    for (const auto& [size, given] : sizes) {
      changed = changed || (given && *given != size);
      size = given.value_or(size);
    }
    if (input_.untied) shape.tie_embeddings = false;
    if (changed && !input_.model.empty()) shape.name += ", changed";
  }

  void set_machines() {
    const config::JobConfig& given = input_.config.job;
    machines().hosts = or_assumed(input_.hosts, 0, "hosts", machines().hosts);
    machines().ranks_per_host = or_assumed(input_.ranks_per_host, given.nproc_per_node,
                                           "ranks-per-host", machines().ranks_per_host);
    machines().threads_per_rank = or_assumed(input_.threads_per_rank, given.threads_per_rank,
                                             "threads-per-rank", machines().threads_per_rank);
    set_memory();
  }

  int or_assumed(const std::optional<int>& flag, int configured, const char* name, int assumed) {
    if (flag) return *flag;
    if (configured > 0) return configured;
    assume(fmt::format("--{} {}", name, assumed));
    return assumed;
  }

  void set_memory() {
    if (!input_.memory_per_host.empty() && !input_.memory_per_rank.empty()) {
      reject("--memory-per-rank: --memory-per-host is given too; give one of both");
    }
    if (!input_.memory_per_rank.empty()) {
      machines().memory_per_host =
          machines().ranks_per_host * parse_bytes("memory-per-rank", input_.memory_per_rank);
    } else if (!input_.memory_per_host.empty()) {
      machines().memory_per_host = parse_bytes("memory-per-host", input_.memory_per_host);
    } else {
      assume(fmt::format("--memory-per-host {}GiB", machines().memory_per_host >> 30));
    }
  }

  void set_rates() {
    machines().flops = kAssumedFlopsPerThread * machines().threads_per_rank;
    const bool measured = !input_.measured.empty();
    if (measured) take_measured();
    set_rate(input_.gflops, kGiga, "flops", measured, machines().flops);
    set_rate(input_.host_bandwidth, kGiga, "host-bandwidth", measured, machines().host_bandwidth);
    const bool unused = machines().hosts == 1;
    set_rate(input_.network_bandwidth, kGiga, "network-bandwidth", unused,
             machines().network_bandwidth);
    set_rate(input_.network_latency, kMicro, "network-latency", unused, machines().network_latency);
  }

  void set_rate(const std::optional<double>& given, double scale, const char* name, bool known,
                double& rate) {
    if (given) {
      rate = *given * scale;
    } else if (!known) {
      assume(fmt::format("--{} {:g}", name, rate / scale));
    }
  }

  void take_measured() {
    const MeasuredRates rates = read_measured_rates(input_.measured);
    machines().flops = rates.flops_per_thread * machines().threads_per_rank;
    machines().host_bandwidth = rates.host_bandwidth;
    settled_.rates_from = fmt::format("{} ({})", input_.measured, rates.machine);
    if (rates.others_share > kQuietShare) {
      settled_.rates_from += fmt::format(
          ", while other processes took {:.0f} % of the machine: measure again when it is quiet",
          100 * rates.others_share);
    }
  }

  void set_precision() {
    if (!input_.precision.empty()) {
      job().precision = parse_precision(input_.precision);
    } else if (input_.config.training.dtype == base::DType::kFloat64) {
      job().precision = Precision::kFloat64;
    } else if (computes_in_bf16()) {
      job().precision = Precision::kBFloat16;
    }
  }

  bool computes_in_bf16() const {
    const config::Field* field = config::find_field("training.mixed_precision_param");
    return field != nullptr && field->get(input_.config) == config::Value(std::string("bfloat16"));
  }

  void set_batch() {
    const config::TrainingConfig& training = input_.config.training;
    const bool trainers = input_.model.empty();
    job().clips = trainers && training.max_norm > 0;
    job().micro_batches = trainers ? training.gradient_accumulation_steps : 1;
    if (input_.micro_batches) job().micro_batches = *input_.micro_batches;
    if (input_.batch) {
      job().batch = *input_.batch;
    } else if (trainers) {
      split_global_batch();
    } else {
      job().batch = batch_of_known(input_.model);
      assume(fmt::format("--batch {}", job().batch));
    }
  }

  void split_global_batch() {
    validate(machines());
    config::TrainConfig config = input_.config;
    config.model.dim = static_cast<int>(job().model.dim);
    config.model.n_heads = static_cast<int>(job().model.heads);
    config.training.gradient_accumulation_steps = job().micro_batches;
    validate(job());
    config::validate(config, machines().world());
    job().batch = config.training.global_batch_size /
                  (std::int64_t{machines().world()} * job().micro_batches);
  }

  void set_configured() {
    const config::ParallelismConfig& parallelism = input_.config.parallelism;
    const std::optional<Strategy> strategy = configured_strategy();
    const std::optional<bool> recompute = configured_recompute();
    if (!strategy || !recompute || parallelism.wrap == config::Wrap::kSize) return;
    Candidate candidate{.strategy = *strategy};
    if (parallelism.wrap == config::Wrap::kNone) candidate.units = {UnitCut::Kind::kWhole, 0};
    const bool moves = machines().hosts > 1 && parallelism.data_parallel_replicate_degree == 1;
    candidate.prefetch = parallelism.forward_prefetch;
    if (candidate.prefetch < 0) candidate.prefetch = moves ? 1 : 0;
    candidate.recompute = *recompute;
    settled_.configured = candidate;
  }

  // Absent where some blocks are computed again.
  std::optional<bool> configured_recompute() const {
    const config::Field* mode = config::find_field("activation_checkpoint.mode");
    if (mode == nullptr) return false;
    const config::Value value = mode->get(input_.config);
    if (value == config::Value(std::string("full"))) return true;
    if (value == config::Value(std::string("none"))) return false;
    return std::nullopt;
  }

  // Absent for a mesh that is none of the candidates'.
  std::optional<Strategy> configured_strategy() const {
    const config::ParallelismConfig& parallelism = input_.config.parallelism;
    const int sets = parallelism.data_parallel_replicate_degree;
    if (sets > 1) {
      if (sets != settled_.job.machines.hosts) return std::nullopt;
      return parallelism.shard_optimizer_over_replicas ? Strategy::kHybridDivided
                                                       : Strategy::kHybridShard;
    }
    switch (parallelism.sharding_strategy) {
      case config::ShardingStrategy::kFullShard: return Strategy::kFullShard;
      case config::ShardingStrategy::kShardGradOp: return Strategy::kShardGradOp;
      case config::ShardingStrategy::kShardOptimizerOnly: return Strategy::kShardOptimizerOnly;
      case config::ShardingStrategy::kNoShard: return Strategy::kNoShard;
      case config::ShardingStrategy::kHybridShard: break;
    }
    return std::nullopt;
  }

  const Input& input_;
  SettledJob settled_;
};

}  // namespace

SettledJob settle(const Input& input) { return Settler(input).run(); }

std::int64_t parse_bytes(const char* flag, const std::string& text) {
  static constexpr std::array<std::pair<std::string_view, double>, 9> kUnits = {
      {{"", 1.0},
       {"B", 1.0},
       {"KiB", 1024.0},
       {"MiB", 1048576.0},
       {"GiB", 1073741824.0},
       {"TiB", 1099511627776.0},
       {"MB", 1e6},
       {"GB", 1e9},
       {"TB", 1e12}}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, size] : kUnits) {
    const double bytes = number * size;
    if (error == std::errc{} && unit == name && bytes >= 1 && bytes < 9e18) {
      return static_cast<std::int64_t>(bytes);
    }
  }
  reject(
      fmt::format("--{}: found \"{}\"; expected a size such as 24GiB, 512MiB or 64GB", flag, text));
}

}  // namespace fullshard::planner
