#include "fuzz/training_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <utility>

#include "fullshard/optim/adamw.h"
#include "fullshard/optim/element_state.h"
#include "support/networks.h"

namespace fullshard::fuzz {
namespace {

using testing::Batch;

constexpr std::int64_t kRows = 12;  // a micro-batch; divides by 1 to 4 ranks
constexpr double kRate = 0.02;
constexpr double kDecay = 0.1;
// Far above rounding errors of gradients that are zero in exact arithmetic.
constexpr double kEpsilon = 1e-5;
constexpr double kTolerance = 1e-10;
constexpr double kToleranceInFloat = 2e-3;

double tolerance_of(const Case& run) { return run.in_float ? kToleranceInFloat : kTolerance; }

Batch batch_of(const Case& run, std::int64_t pass) {
  const auto generator =
      at::make_generator<at::CPUGeneratorImpl>(1000 * run.seed + static_cast<std::uint64_t>(pass));
  return {at::randn({kRows, run.net.width}, generator, at::kDouble),
          at::randn({kRows, run.net.width}, generator, at::kDouble)};
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Case& run,
                                                        const std::vector<at::Tensor>& parameters) {
  namespace o = torch::optim;
  switch (run.optimizer) {
    case Optimizer::kSgd:
      return std::make_unique<o::SGD>(parameters,
                                      o::SGDOptions(kRate).momentum(0.9).weight_decay(kDecay));
    case Optimizer::kAdam:
      return std::make_unique<o::Adam>(parameters,
                                       o::AdamOptions(kRate).eps(kEpsilon).amsgrad(true));
    case Optimizer::kAdamW:
    case Optimizer::kFusedAdamW:
      return std::make_unique<o::AdamW>(parameters,
                                        o::AdamWOptions(kRate).eps(kEpsilon).weight_decay(kDecay));
    case Optimizer::kRmsProp:
      return std::make_unique<o::RMSprop>(parameters, o::RMSpropOptions(kRate).eps(kEpsilon));
    case Optimizer::kAdagrad:
      return std::make_unique<o::Adagrad>(parameters, o::AdagradOptions(kRate).eps(kEpsilon));
  }
  return nullptr;
}

void freeze(const Case& run, const Net& net, std::int64_t step) {
  for (const auto& item : net.named_parameters()) {
    for (const FreezeSpec& freeze : run.freezes) {
      if (item.key() == freeze.pattern) item.value().set_requires_grad(step >= freeze.thawed);
    }
  }
}

// Values that single precision has, in single precision or in double. What is tied stays tied.
void round_parameters(Net& net, at::ScalarType dtype) {
  for (at::Tensor& parameter : testing::unique_parameters(net)) {
    parameter.set_data(parameter.detach().to(at::kFloat).to(dtype));
  }
}

void halve_one(Net& net) {
  const at::NoGradGuard no_grad;
  net.parameters().front().mul_(0.5);
}

void zero_module(const Case& run, Net& net) { net.zero_grad(run.seed % 2 == 0); }

// One rank's half of a run; the unsharded half has the same methods.
class ShardedSide {
 public:
  ShardedSide(const Case& run, comm::World& world)
      : run_(run), rank_(world.rank()), net_(start(world.rank())), sharded_(make(world)) {
    if (run.optimizer == Optimizer::kFusedAdamW) {
      fused_ = std::make_unique<optim::AdamW>(
          sharded_.named_parameters(),
          optim::AdamWOptions{.lr = kRate, .eps = kEpsilon, .weight_decay = kDecay},
          std::vector<optim::GroupRule>{});
    } else {
      stock_ = make_optimizer(run, sharded_.parameters());
    }
  }

  Net& net() { return *net_; }

  void zero() {
    switch (run_.zero_grad) {
      case ZeroGrad::kOptimizer:
      case ZeroGrad::kOptimizerInPlace: {
        const bool to_none = run_.zero_grad == ZeroGrad::kOptimizer;
        return stock_ ? stock_->zero_grad(to_none) : fused_->zero_grad(to_none);
      }
      case ZeroGrad::kHandle: return sharded_.zero_grad();
      case ZeroGrad::kModule: return zero_module(run_, *net_);
    }
  }

  void backward(std::int64_t pass, bool last) {
    if (run_.deferred) sharded_.set_requires_gradient_sync(last);
    const Batch batch = testing::rows_of_rank(batch_of(run_, pass), rank_, run_.ranks);
    net_->backward(batch, {pass, rank_}, 1);
  }

  double clip() { return sharded_.clip_grad_norm_(run_.max_norm, run_.norm_type); }

  void step() { stock_ ? void(stock_->step()) : fused_->step(); }

  void between(Interlude what, std::int64_t pass) {
    switch (what) {
      case Interlude::kNone: return;
      case Interlude::kEvaluate:
      case Interlude::kRecordedEvaluate: {
        const at::AutoGradMode mode(what == Interlude::kRecordedEvaluate);
        net_->run(batch_of(run_, pass).x, {pass, rank_});
        return;
      }
      case Interlude::kFullState: sharded_.full_state_dict(run_.seed % 2 == 0); return;
      case Interlude::kReload: sharded_.load_state_dict(sharded_.full_state_dict()); return;
      case Interlude::kRelease: return sharded_.release();
      case Interlude::kRead: sharded_.unsharded(); return;
      case Interlude::kHalve: {
        auto scope = sharded_.unsharded(shard::UnshardedMode::kWrite);
        halve_one(*net_);
        return scope.close();
      }
    }
  }

  void move(std::int64_t step) {
    sharded_.zero_grad();
    std::vector<double> weights;
    for (std::int64_t rank = 0; rank < run_.ranks / run_.replicate; ++rank) {
      weights.push_back(static_cast<double>((step + 3 * rank) % 4 + (rank == 0 ? 1 : 0)));
    }
    const auto state = stock_ ? optim::element_state(*stock_) : optim::element_state(*fused_);
    sharded_.move_shards(weights, {state.get()});
  }

  shard::StateDict parameters() { return sharded_.full_state_dict(); }

  std::int64_t bytes_above_limit() const {
    return limit_ == 0 ? 0 : sharded_.counters().peak_unsharded_bytes - limit_;
  }

 private:
  // With sync_module_states, ranks other than 0 start from something else.
  std::shared_ptr<Net> start(int rank) const {
    const auto net = build(run_.net);
    if (run_.from_float) round_parameters(*net, at::kFloat);
    freeze(run_, *net, 0);
    const at::NoGradGuard no_grad;
    if (rank > 0 && run_.sharding.sync_module_states) {
      for (at::Tensor& parameter : testing::unique_parameters(*net)) parameter.add_(rank);
    }
    return net;
  }

  shard::ShardedModule make(comm::World& world) {
    const comm::Mesh mesh = world.mesh({.replicate = run_.replicate});
    shard::FullyShardOptions options = run_.sharding;
    options.auto_wrap_policy = policy_of(run_.wrap);
    options.keep_gathered = units_kept(mesh, options);
    if (run_.limit > 0) options.max_unsharded_bytes = limit_ = limit_in(mesh, options);
    return shard::fully_shard(net_, mesh, options);
  }

  // Of what is to be kept, the modules that are units; others are refused.
  std::vector<std::string> units_kept(const comm::Mesh& mesh,
                                      shard::FullyShardOptions options) const {
    std::vector<std::string> kept = std::exchange(options.keep_gathered, {});
    if (kept.empty()) return {};
    const auto units = shard::fully_shard(start(rank_), mesh, options).counters().units;
    std::erase_if(kept, [&](const std::string& module) {
      return std::none_of(units.begin(), units.end(), [&](const shard::UnitCounters& unit) {
        return unit.name == module || unit.name.starts_with(module + " [");
      });
    });
    return kept;
  }

  std::int64_t limit_in(const comm::Mesh& mesh, const shard::FullyShardOptions& options) const {
    const auto probe = shard::fully_shard(start(rank_), mesh, options);
    std::int64_t largest = 1;
    for (const auto& unit : probe.counters().units) largest = std::max(largest, unit.bytes);
    return static_cast<std::int64_t>(run_.limit * static_cast<double>(largest));
  }

  const Case& run_;
  int rank_;
  std::shared_ptr<Net> net_;
  std::int64_t limit_ = 0;  // of gathered bytes
  shard::ShardedModule sharded_;
  std::unique_ptr<torch::optim::Optimizer> stock_;
  std::unique_ptr<optim::AdamW> fused_;
};

class UnshardedSide {
 public:
  explicit UnshardedSide(const Case& run)
      : run_(run),
        net_(start(run)),
        optimizer_(make_optimizer(run, testing::unique_parameters(*net_))) {}

  Net& net() { return *net_; }

  void zero() {
    switch (run_.zero_grad) {
      case ZeroGrad::kOptimizer: return optimizer_->zero_grad(true);
      case ZeroGrad::kOptimizerInPlace: return optimizer_->zero_grad(false);
      case ZeroGrad::kHandle: return net_->zero_grad(true);
      case ZeroGrad::kModule: return zero_module(run_, *net_);
    }
  }

  void backward(std::int64_t pass, bool) {
    const Batch whole = batch_of(run_, pass);
    const double divisor = run_.sharding.gradient_divide_factor;
    for (int rank = 0; rank < run_.ranks; ++rank) {
      net_->backward(testing::rows_of_rank(whole, rank, run_.ranks), {pass, rank},
                     1 / (divisor == 0 ? run_.ranks : divisor));
    }
  }

  double clip() {
    std::vector<at::Tensor> parameters = testing::unique_parameters(*net_);
    std::erase_if(parameters, [](const at::Tensor& parameter) { return parameter.numel() == 0; });
    return torch::nn::utils::clip_grad_norm_(parameters, run_.max_norm, run_.norm_type);
  }

  void step() { optimizer_->step(); }

  void between(Interlude what, std::int64_t) {
    if (what == Interlude::kHalve) halve_one(*net_);
  }

  void move(std::int64_t) {}

  shard::StateDict parameters() { return testing::parameters_of(*net_); }

  std::int64_t bytes_above_limit() const { return 0; }

 private:
  static std::shared_ptr<Net> start(const Case& run) {
    const auto net = build(run.net);
    if (run.from_float) round_parameters(*net, at::kDouble);
    return net;
  }

  const Case& run_;
  std::shared_ptr<Net> net_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

template <typename Side>
Outcome train(const Case& run, Side side) {
  Outcome outcome;
  std::int64_t pass = 0;
  for (std::int64_t step = 0; step < run.steps; ++step) {
    freeze(run, side.net(), step);
    side.zero();
    for (int micro = 0; micro < run.micro_batches; ++micro) {
      side.backward(pass++, micro + 1 == run.micro_batches);
    }
    if (run.max_norm > 0) outcome.norms.push_back(side.clip());
    const auto index = static_cast<std::size_t>(step);
    side.between(run.before_update[index], pass);
    side.step();
    side.between(run.after_update[index], pass);
    if (run.moves) side.move(step);
  }
  outcome.parameters = side.parameters();
  outcome.bytes_above_limit = side.bytes_above_limit();
  return outcome;
}

// All names of the parameters that a rule leaves alone; a tied one has several.
std::set<std::string> ignored_names(const Case& run) {
  const auto parameters = build(run.net)->named_parameters();
  std::set<std::string> names;
  for (const shard::ParameterRule& rule : run.sharding.rules) {
    if (!rule.ignore) continue;
    for (const auto& parameter : parameters) {
      if (parameter.value().is_same(parameters[rule.pattern])) names.insert(parameter.key());
    }
  }
  return names;
}

double worst(const at::Tensor& actual, const at::Tensor& expected) {
  if (expected.numel() == 0) return 0;
  return ((actual - expected).abs() / expected.abs().clamp_min(1)).max().item<double>();
}

}  // namespace

Outcome train_unsharded(const Case& run) { return train(run, UnshardedSide(run)); }

std::vector<Outcome> train_sharded(const Case& run) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(run.ranks));
  const auto rank = [&](comm::World& world) {
    outcomes[static_cast<std::size_t>(world.rank())] = train(run, ShardedSide(run, world));
  };
  const comm::CommOptions options{.timeout = std::chrono::seconds(30)};
  switch (run.transport) {
    case Transport::kThreads: comm::run_as_threads(run.ranks, rank, options); break;
    case Transport::kGloo: testing::run_over_gloo(run.ranks, rank, options); break;
    case Transport::kHosts: testing::run_on_hosts(2, run.ranks / 2, rank, options); break;
  }
  return outcomes;
}

std::string difference(const Case& run, const Outcome& actual, const Outcome& expected) {
  std::string text;
  const std::set<std::string> ignored = ignored_names(run);
  for (const auto& [name, value] : expected.parameters) {
    const auto found = actual.parameters.find(name);
    if (ignored.contains(name)) continue;
    if (found == actual.parameters.end()) {
      text += fmt::format("  {} is missing\n", name);
    } else if (found->second.sizes() != value.sizes()) {
      text += fmt::format("  {} has another shape\n", name);
    } else if (const double off = worst(found->second, value); !(off <= tolerance_of(run))) {
      text += fmt::format("  {} is off by {:.2e}\n", name, off);
    }
  }
  if (actual.bytes_above_limit > 0) {
    text += fmt::format("  {} bytes more than the limit are gathered\n", actual.bytes_above_limit);
  }
  for (std::size_t step = 0; step < expected.norms.size(); ++step) {
    const double off = std::abs(actual.norms.at(step) - expected.norms[step]);
    if (!(off <= tolerance_of(run) * std::max(1.0, expected.norms[step]))) {
      text += fmt::format("  the norm of step {} is off by {:.2e}\n", step, off);
    }
  }
  return text;
}

}  // namespace fullshard::fuzz
