#include "bench/measure/trainee.h"

#include <torch/torch.h>

#include <utility>

#include "fullshard/base/check.h"
#include "fullshard/optim/adamw.h"
#include "fullshard/shard/fully_shard.h"

namespace fullshard::bench::measure {
namespace {

constexpr std::uint64_t kSeed = 0;
constexpr optim::AdamWOptions kAdamW{.lr = 3e-4};

shard::ShardingStrategy strategy_of(const std::string& name) {
  if (name == "NO_SHARD") return shard::ShardingStrategy::NO_SHARD;
  if (name == "SHARD_OPTIMIZER_ONLY") return shard::ShardingStrategy::SHARD_OPTIMIZER_ONLY;
  if (name == "SHARD_GRAD_OP") return shard::ShardingStrategy::SHARD_GRAD_OP;
  FULLSHARD_CHECK_EQ(name, "FULL_SHARD");
  return shard::ShardingStrategy::FULL_SHARD;
}

shard::WrapPolicy policy_of(const std::string& units) {
  if (units == "automatic") return shard::automatic();
  if (units == "blocks") return shard::transformer_blocks();
  if (units == "whole") return shard::root_only();
  return shard::size_based(least_unit(units));
}

std::vector<shard::ParameterRule> rules_of(const std::string& atom) {
  if (atom == "row") return {{.pattern = "*", .atom = layout::Atom::kRow}};
  if (atom == "parameter") return {{.pattern = "*", .atom = layout::Atom::kParameter}};
  if (atom == "unit") return {{.pattern = "*", .atom = layout::Atom::kUnit}};
  return {};
}

class ShardedTrainee : public Trainee {
 public:
  ShardedTrainee(models::Gpt model, const StepSpec& spec, const comm::Mesh& mesh)
      : Trainee(std::move(model)),
        sharded_(shard::fully_shard(model_, mesh, options(spec))),
        optimizer_(sharded_.named_parameters(), kAdamW) {}

  double grad_norm() override { return sharded_.grad_norm(); }

  void update() override {
    optimizer_.step();
    optimizer_.zero_grad();
  }

  shard::Counters counters() const override { return sharded_.counters(); }
  void reset_peaks() override { sharded_.reset_peak(); }

 private:
  static shard::FullyShardOptions options(const StepSpec& spec) {
    shard::FullyShardOptions options;
    options.sharding_strategy = strategy_of(spec.strategy);
    options.auto_wrap_policy = policy_of(spec.units);
    options.rules = rules_of(spec.atom);
    return options;
  }

  shard::ShardedModule sharded_;
  optim::AdamW optimizer_;
};

/// The same optimizer over whole parameters: it sees each one flat, in the parameter's memory, and
/// is handed the gradient as a view.
class PlainTrainee : public Trainee {
 public:
  explicit PlainTrainee(models::Gpt model)
      : Trainee(std::move(model)),
        parameters_(model_->parameters()),
        flat_(flatten(*model_)),
        optimizer_(flat_, kAdamW) {}

  double grad_norm() override {
    std::vector<at::Tensor> norms;
    for (const at::Tensor& parameter : parameters_) norms.push_back(parameter.grad().norm());
    return at::stack(norms).norm().item<double>();
  }

  void update() override {
    for (std::size_t i = 0; i < flat_.size(); ++i) {
      flat_[i].tensor.mutable_grad() = parameters_[i].grad().view(-1);
    }
    optimizer_.step();
    optimizer_.zero_grad();
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  }

  shard::Counters counters() const override { return {}; }
  void reset_peaks() override {}

 private:
  static std::vector<state::ShardedTensor> flatten(const torch::nn::Module& model) {
    std::vector<state::ShardedTensor> flat;
    for (const auto& item : model.named_parameters()) {
      const at::Tensor& whole = item.value();
      flat.push_back({.name = item.key(),
                      .global_shape = whole.sizes().vec(),
                      .begin = 0,
                      .end = whole.numel(),
                      .tensor = whole.detach().view(-1)});
    }
    return flat;
  }

  std::vector<at::Tensor> parameters_;
  std::vector<state::ShardedTensor> flat_;
  optim::AdamW optimizer_;
};

}  // namespace

models::GptOptions gpt_options(const StepShape& shape) {
  return {.vocab_size = shape.vocab,
          .seq_len = shape.seq,
          .dim = shape.dim,
          .n_layers = shape.layers,
          .n_heads = shape.heads};
}

std::unique_ptr<Trainee> make_trainee(const StepSpec& spec, const comm::Mesh& mesh) {
  torch::manual_seed(kSeed);
  models::GptOptions options = gpt_options(spec.shape);
  options.recompute_every = spec.recompute;
  models::Gpt model(options);
  if (!spec.sharded) return std::make_unique<PlainTrainee>(std::move(model));
  return std::make_unique<ShardedTrainee>(std::move(model), spec, mesh);
}

}  // namespace fullshard::bench::measure
