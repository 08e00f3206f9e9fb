#include "support/training.h"

#include <gtest/gtest.h>

#include <mutex>

#include "fullshard/optim/adamw.h"

namespace fullshard::testing {
namespace {

constexpr std::int64_t kRows = 12;  // divides by 1, 2, 3 and 4 ranks
constexpr std::int64_t kTokens = 8;
constexpr double kRate = 1e-2;
constexpr double kDecay = 0.1;

at::Generator generator(std::int64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed));
}

struct Mlp : Model {
  Mlp(const std::vector<std::int64_t>& widths, at::ScalarType dtype) {
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      layers->push_back(torch::nn::Linear(widths[i], widths[i + 1]));
    }
    register_module("layers", layers);
    to(dtype);
  }

  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    at::Tensor h = x;
    for (std::size_t i = 0; i < layers->size(); ++i) {
      if (i > 0) h = torch::relu(h);
      h = layers[i]->as<torch::nn::Linear>()->forward(h);
    }
    return (h - y).pow(2).mean();
  }

  torch::nn::ModuleList layers;
};

struct Block : torch::nn::Module {
  explicit Block(std::int64_t dim)
      : norm(torch::nn::LayerNormOptions({dim})), up(dim, 2 * dim), down(2 * dim, dim) {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = norm(x);
    const at::Tensor mixed = at::scaled_dot_product_attention(h, h, h, {}, 0.0, true);
    return x + down(torch::gelu(up(mixed)));
  }

  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};

// A linear map without bias over a weight that may belong to another module as well.
struct Head : torch::nn::Module {
  explicit Head(const at::Tensor& shared) { weight = register_parameter("weight", shared); }
  at::Tensor weight;
};

struct Gpt : Model {
  Gpt(std::int64_t vocab, std::int64_t dim, std::int64_t layers, bool tied, at::ScalarType dtype)
      : table(vocab, dim), norm(torch::nn::LayerNormOptions({dim})) {
    register_module("table", table);
    register_module("blocks", blocks);
    for (std::int64_t i = 0; i < layers; ++i) blocks->push_back(std::make_shared<Block>(dim));
    register_module("norm", norm);
    head = std::make_shared<Head>(tied ? table->weight : at::randn({vocab, dim}) * 0.1);
    register_module("head", head);
    to(dtype);
  }

  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    at::Tensor h = table(x);
    for (const auto& block : *blocks) h = block->as<Block>()->forward(h);
    const at::Tensor logits = at::linear(norm(h), head->weight);
    return at::cross_entropy_loss(logits.flatten(0, 1), y.flatten());
  }

  torch::nn::Embedding table;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
  std::shared_ptr<Head> head;
};

}  // namespace

std::shared_ptr<Model> build_seeded(const std::function<std::shared_ptr<Model>()>& make) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(7);
  return make();
}

Problem mlp_problem(std::vector<std::int64_t> widths, at::ScalarType dtype) {
  return {
      .build = [=] { return build_seeded([&] { return std::make_shared<Mlp>(widths, dtype); }); },
      .batch =
          [=](std::int64_t step) {
            auto random = generator(100 + step);
            const auto options = at::TensorOptions(dtype);
            return Batch{at::randn({kRows, widths.front()}, random, options),
                         at::randn({kRows, widths.back()}, random, options)};
          }};
}

Problem gpt_problem(std::int64_t vocab, std::int64_t dim, std::int64_t layers, bool tied,
                    at::ScalarType dtype) {
  return {.build =
              [=] {
                return build_seeded(
                    [&] { return std::make_shared<Gpt>(vocab, dim, layers, tied, dtype); });
              },
          .batch =
              [=](std::int64_t step) {
                const at::Tensor tokens =
                    at::randint(vocab, {kRows, kTokens + 1}, generator(100 + step), at::kLong);
                return Batch{tokens.narrow(1, 0, kTokens), tokens.narrow(1, 1, kTokens)};
              }};
}

at::Tensor run_block(Model& model, std::size_t block, const at::Tensor& x) {
  return dynamic_cast<Gpt&>(model).blocks[block]->as<Block>()->forward(x);
}

Batch rows_of_rank(const Batch& batch, int rank, int size) {
  const std::int64_t rows = batch.x.size(0) / size;
  return {batch.x.narrow(0, rank * rows, rows), batch.y.narrow(0, rank * rows, rows)};
}

std::unique_ptr<torch::optim::Optimizer> stock_optimizer(
    Optimizer kind, const std::vector<at::Tensor>& parameters) {
  switch (kind) {
    case Optimizer::kSgd:
      return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(kRate));
    case Optimizer::kAdam:
      return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(kRate));
    case Optimizer::kAdamW:
    case Optimizer::kFusedAdamW:
      return std::make_unique<torch::optim::AdamW>(
          parameters, torch::optim::AdamWOptions(kRate).weight_decay(kDecay));
  }
  return nullptr;
}

shard::StateDict parameters_of(const torch::nn::Module& module) {
  shard::StateDict state;
  for (const auto& item : module.named_parameters())
    state[item.key()] = item.value().detach().clone();
  return state;
}

std::vector<at::Tensor> unique_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& parameter : module.parameters()) {
    const auto same = [&](const at::Tensor& seen) { return seen.is_same(parameter); };
    if (std::none_of(out.begin(), out.end(), same)) out.push_back(parameter);
  }
  return out;
}

optim::AdamW fused_adamw(const shard::ShardedModule& sharded) {
  return {sharded.named_parameters(), {.lr = kRate, .weight_decay = kDecay}, {}};
}

shard::StateDict train_reference(const Problem& problem, const TrainOptions& options) {
  const auto model = problem.build();
  const auto optimizer = stock_optimizer(options.optimizer, unique_parameters(*model));
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const Batch batch = problem.batch(step);
    optimizer->zero_grad();
    model->loss(batch.x, batch.y).backward();
    if (options.max_norm > 0) {
      const double norm = torch::nn::utils::clip_grad_norm_(unique_parameters(*model),
                                                            options.max_norm, options.norm_type);
      if (options.on_norm) options.on_norm(step, norm);
    }
    optimizer->step();
  }
  return parameters_of(*model);
}

void train_steps(Model& model, const shard::ShardedModule& sharded, comm::World& world,
                 const Problem& problem, const TrainOptions& options) {
  std::unique_ptr<torch::optim::Optimizer> stock;
  std::unique_ptr<optim::AdamW> fused;
  if (options.optimizer == Optimizer::kFusedAdamW) {
    fused = std::make_unique<optim::AdamW>(fused_adamw(sharded));
  } else {
    stock = stock_optimizer(options.optimizer, sharded.parameters());
  }
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const Batch batch = rows_of_rank(problem.batch(step), world.rank(), world.size());
    if (stock) {
      stock->zero_grad();
    } else {
      fused->zero_grad();
    }
    model.loss(batch.x, batch.y).backward();
    if (options.max_norm > 0) {
      const double norm = sharded.clip_grad_norm_(options.max_norm, options.norm_type);
      if (options.on_norm) options.on_norm(step, norm);
    }
    if (fused) {
      fused->step();
    } else {
      stock->step();
    }
  }
}

shard::StateDict train_sharded(const Problem& problem, comm::World& world,
                               const shard::FullyShardOptions& sharding,
                               const TrainOptions& options, const comm::MeshOptions& mesh) {
  const auto model = problem.build();
  const auto sharded = shard::fully_shard(model, world.mesh(mesh), sharding);
  train_steps(*model, sharded, world, problem, options);
  return sharded.full_state_dict();
}

void expect_match(const shard::StateDict& actual, const shard::StateDict& expected,
                  double tolerance) {
  for (const auto& [name, value] : expected) {
    const auto found = actual.find(name);
    ASSERT_NE(found, actual.end()) << name << " is missing";
    ASSERT_EQ(found->second.sizes(), value.sizes()) << name;
    if (value.numel() == 0) continue;
    const at::Tensor wanted = value.to(at::kDouble);
    const at::Tensor scale = wanted.abs().clamp_min(1);
    const double worst =
        ((found->second.to(at::kDouble) - wanted).abs() / scale).max().item<double>();
    EXPECT_LE(worst, tolerance) << name;
  }
}

void expect_bitwise_equal(const shard::StateDict& actual, const shard::StateDict& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(actual.contains(name)) << name;
    EXPECT_TRUE(at::equal(actual.at(name), value)) << name << " differs";
  }
}

}  // namespace fullshard::testing
