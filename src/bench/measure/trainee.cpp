#include "bench/measure/trainee.h"

#include <torch/torch.h>

#include <cmath>
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

/// Groups of heads in attention; rows of the first matrix of an MLP, columns of the second.
std::vector<shard::ParameterRule> between_heads(const StepShape& shape) {
  using layout::Atom;
  constexpr std::int64_t kTogether = 4;
  struct Names {
    const char *projected, *mixed, *up, *down;
  };
  Names names{"*qkv.*", "*attention.projection.weight", "*mlp.up.*", "*mlp.projection.weight"};
  if (shape.model == "bert") {
    names = {"*attention.self.*", "*attention.output.dense.weight", "*intermediate.dense.*",
             "*output.dense.weight"};
  } else if (shape.model == "vit") {
    names = {"*in_proj_*", "*out_proj.weight", "*mlp.0.*", "*mlp.3.weight"};
  }
  const std::int64_t group = kTogether * shape.dim / shape.heads;
  return {{.pattern = names.projected, .atom = Atom::kRow, .group = group},
          {.pattern = names.mixed, .atom = Atom::kColumn, .group = group},
          {.pattern = names.up, .atom = Atom::kRow},
          {.pattern = names.down, .atom = Atom::kColumn}};
}

std::vector<shard::ParameterRule> rules_of(const std::string& atom, const StepShape& shape) {
  if (atom == "heads") return between_heads(shape);
  if (atom == "row") return {{.pattern = "*", .atom = layout::Atom::kRow}};
  if (atom == "parameter") return {{.pattern = "*", .atom = layout::Atom::kParameter}};
  if (atom == "unit") return {{.pattern = "*", .atom = layout::Atom::kUnit}};
  return {};
}

class ShardedTrainee : public Trainee {
 public:
  ShardedTrainee(Subject subject, const StepSpec& spec, const comm::Mesh& mesh)
      : Trainee(std::move(subject)),
        sharded_(shard::fully_shard(subject_.module, mesh, options(spec))),
        optimizer_(sharded_.named_parameters(), kAdamW) {}

  at::Tensor loss(const Batch& batch) override { return subject_.loss(batch); }

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
    options.rules = rules_of(spec.atom, spec.shape);
    return options;
  }

  shard::ShardedModule sharded_;
  optim::AdamW optimizer_;
};

/// The same optimizer over whole parameters: it sees each one flat, in the parameter's memory, and
/// is handed the gradient as a view.
class PlainTrainee : public Trainee {
 public:
  PlainTrainee(Subject subject, int ranks)
      : Trainee(std::move(subject)),
        parts_(subject_.depends_on_batch ? ranks : 1),
        parameters_(subject_.module->parameters()),
        flat_(flatten(*subject_.module)),
        optimizer_(flat_, kAdamW) {}

  at::Tensor loss(const Batch& batch) override {
    const std::int64_t rows = batch.inputs.size(0) / parts_;
    at::Tensor sum = subject_.loss(batch.rows(0, rows));
    for (std::int64_t part = 1; part < parts_; ++part) {
      sum = sum + subject_.loss(batch.rows(part * rows, rows));
    }
    return sum / parts_;
  }

  double grad_norm() override {
    constexpr std::int64_t kPiece = 1 << 16;  // fp32 adds up few squares precisely, not millions
    double squares = 0;
    for (const at::Tensor& parameter : parameters_) {
      for (const at::Tensor& piece : parameter.grad().flatten().split(kPiece)) {
        squares += std::pow(piece.norm().item<double>(), 2);
      }
    }
    return std::sqrt(squares);
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

  std::int64_t parts_;
  std::vector<at::Tensor> parameters_;
  std::vector<state::ShardedTensor> flat_;
  optim::AdamW optimizer_;
};

}  // namespace

std::unique_ptr<Trainee> make_trainee(const StepSpec& spec, const comm::Mesh& mesh) {
  torch::manual_seed(kSeed);
  Subject subject = make_subject(spec);
  if (!spec.sharded) return std::make_unique<PlainTrainee>(std::move(subject), spec.ranks);
  return std::make_unique<ShardedTrainee>(std::move(subject), spec, mesh);
}

}  // namespace fullshard::bench::measure
