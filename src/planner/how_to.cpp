#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "fullshard/config/schema.h"
#include "fullshard/planner/report.h"
#include "planner/memory.h"
#include "planner/traffic.h"

namespace fullshard::planner {
namespace {

constexpr std::int64_t kByteVocabulary = 256;  // of the trainer's data

// The strategy as shard::ShardingStrategy and the trainer name it.
std::string_view plain_name(Strategy strategy) {
  return to_string(strategy == Strategy::kHybridDivided ? Strategy::kHybridShard : strategy);
}

class Settings {
 public:
  Settings(const Job& job, const Candidate& candidate) : job_(job), candidate_(candidate) {}

  TrainSettings run() {
    set_model();
    set_training();
    set_parallelism();
    set_units();
    if (candidate_.recompute) {
      set_if_known("activation_checkpoint.mode", "full", "computing blocks again in backward");
    }
    if (candidate_.cuts == Cuts::kHeads) miss("cutting between heads");
    return std::move(settings_);
  }

 private:
  template <typename Value>
  void set(std::string key, const Value& value) {
    settings_.fields.emplace_back(std::move(key), fmt::format("{}", value));
  }

  void miss(std::string what) { settings_.missing.push_back(std::move(what)); }

  void set_if_known(const std::string& key, const std::string& value, const char* meaning) {
    if (config::find_field(key) == nullptr) {
      miss(meaning);
    } else {
      set(key, value);
    }
  }

  void set_model() {
    const ModelShape& shape = job_.model;
    set("model.n_layers", shape.layers);
    set("model.dim", shape.dim);
    set("model.n_heads", shape.heads);
    if (!shape.tie_embeddings) set("model.tie_embeddings", false);
    if (shape.kind == ModelKind::kEncoder)
      miss("a vision transformer: the trainer's model is a GPT");
    if (shape.kind == ModelKind::kDecoder && shape.vocab != kByteVocabulary) {
      miss(fmt::format("a vocabulary of {}: the trainer's has {}", shape.vocab, kByteVocabulary));
    }
    if (shape.mlp_ratio != 4) miss(fmt::format("an MLP of {} times the width", shape.mlp_ratio));
  }

  void set_training() {
    const Machines& machines = job_.machines;
    set("training.seq_len", job_.model.seq);
    set("training.global_batch_size", job_.batch * machines.world() * job_.micro_batches);
    if (job_.micro_batches > 1) {
      set("training.gradient_accumulation_steps", job_.micro_batches);
    }
    if (job_.precision == Precision::kFloat64) set("training.dtype", "float64");
    if (job_.precision == Precision::kBFloat16) {
      set_if_known("training.mixed_precision_param", "bfloat16", "bf16 with fp32 masters");
    }
    set("job.threads_per_rank", machines.threads_per_rank);
    if (machines.hosts == 1) set("job.nproc_per_node", machines.ranks_per_host);
  }

  void set_parallelism() {
    set("parallelism.sharding_strategy", plain_name(candidate_.strategy));
    if (is_hybrid(candidate_.strategy)) {
      set("parallelism.data_parallel_replicate_degree", job_.machines.hosts);
    }
    if (candidate_.strategy == Strategy::kHybridDivided) {
      set("parallelism.shard_optimizer_over_replicas", true);
    }
    if (!is_private(job_, candidate_.strategy)) return;
    set("parallelism.forward_prefetch", candidate_.prefetch);
    set("parallelism.backward_prefetch", candidate_.prefetch);
  }

  void set_units() {
    const UnitCut& units = candidate_.units;
    if (units == UnitCut{}) {
      set("parallelism.wrap", "blocks");
    } else if (units.kind == UnitCut::Kind::kWhole) {
      set("parallelism.wrap", "none");
    } else {
      miss(fmt::format("units of {}", to_string(units)));
    }
  }

  const Job& job_;
  const Candidate& candidate_;
  TrainSettings settings_;
};

std::string cpp_groups(const Job& job, const UnitCut& units) {
  const std::string block = block_prefix(job.model.kind);
  if (units.kind == UnitCut::Kind::kHalves) {
    std::vector<std::string> groups;
    for (const Stage& stage : stages_of(job.model)) {
      if (stage.block != 0) continue;
      std::string modules;
      for (const std::string& module : stage.modules) {
        const std::string rest = module.substr(stage.block_module.size());
        modules += fmt::format("{}block + \"{}\"", modules.empty() ? "" : ", ", rest);
      }
      groups.push_back(fmt::format("  groups.push_back({{{}}});\n", modules));
    }
    return fmt::format(
        "for (int i = 0; i < {}; ++i) {{\n  const std::string block = \"{}\" + "
        "std::to_string(i);\n{}}}\n",
        job.model.layers, block, fmt::join(groups, ""));
  }
  return fmt::format(
      "for (int i = 0; i < {0}; ++i) {{\n  if (i % {1} == 0) groups.emplace_back();\n  "
      "groups.back().push_back(\"{2}\" + std::to_string(i));\n}}\n",
      job.model.layers, units.blocks, block);
}

std::string cpp_policy(const Job& job, const UnitCut& units) {
  if (units == UnitCut{}) return "options.auto_wrap_policy = transformer_blocks();\n";
  if (units.kind == UnitCut::Kind::kWhole) return "options.auto_wrap_policy = root_only();\n";
  return "std::vector<UnitChoice> groups;\n" + cpp_groups(job, units) +
         "options.auto_wrap_policy = with_groups(root_only(), groups);\n";
}

std::string cpp_rules(const Job& job, const Candidate& candidate) {
  if (candidate.cuts != Cuts::kHeads) return "";
  std::vector<std::string> rules;
  for (const AtomRule& rule : heads_for(job, candidate).rules) rules.push_back(cpp_rule(rule));
  return fmt::format("options.rules = {{{}}};\n", fmt::join(rules, ",\n                 "));
}

}  // namespace

std::string cpp_rule(const AtomRule& rule) {
  const char* atom = rule.atom == layout::Atom::kColumn ? "kColumn" : "kRow";
  const std::string group = rule.group == 1 ? "" : fmt::format(", .group = {}", rule.group);
  return fmt::format("{{.pattern = \"{}\", .atom = Atom::{}{}}}", rule.pattern, atom, group);
}

TrainSettings train_settings(const Job& job, const Candidate& candidate) {
  return Settings(job, candidate).run();
}

std::string train_command(const Job& job, const TrainSettings& settings) {
  std::string command = "fullshard train";
  if (job.machines.hosts > 1) {
    command = fmt::format(
        "torchrun --nnodes {} --nproc-per-node {} --rdzv-backend c10d --rdzv-endpoint HOST:29500 "
        "--no-python fullshard train",
        job.machines.hosts, job.machines.ranks_per_host);
  }
  for (const auto& [key, value] : settings.fields) {
    command += fmt::format(" \\\n    --{} {}", key, value);
  }
  return command;
}

std::string cpp_options(const Job& job, const Candidate& candidate) {
  std::string text = "using namespace fullshard;\nFullyShardOptions options;\n";
  text += fmt::format("options.sharding_strategy = ShardingStrategy::{};\n",
                      plain_name(candidate.strategy));
  text += cpp_policy(job, candidate.units);
  text += cpp_rules(job, candidate);
  if (is_private(job, candidate.strategy) && candidate.strategy != Strategy::kNoShard) {
    text += fmt::format("options.forward_prefetch = options.backward_prefetch = {};\n",
                        candidate.prefetch);
  }
  if (candidate.strategy == Strategy::kHybridDivided) {
    text += "options.shard_optimizer_over_replicas = true;\n";
  }
  if (job.precision == Precision::kBFloat16) {
    text += "options.mixed_precision.param_dtype = torch::kBFloat16;\n";
  }
  text += is_hybrid(candidate.strategy)
              ? fmt::format("Mesh mesh = world.mesh({{.replicate = {}}});\n", job.machines.hosts)
              : "Mesh mesh = world.mesh();\n";
  text += "auto sharded = fully_shard(model, mesh, options);\n";
  if (candidate.recompute) {
    text +=
        "// and in the model's forward, for each block:\n"
        "x = checkpoint([block](const at::Tensor& x) { return block->forward(x); }, x);\n";
  }
  return text;
}

}  // namespace fullshard::planner
