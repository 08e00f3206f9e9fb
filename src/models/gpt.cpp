#include "fullshard/models/gpt.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>

#include "fullshard/recompute/checkpoint.h"
#include "models/attend.h"
#include "models/validation.h"

namespace fullshard::models {
namespace {

constexpr const char* kModel = "GPT";
constexpr double kInitStd = 0.02;
constexpr std::int64_t kMlpRatio = 4;

torch::nn::LayerNorm make_norm(const GptOptions& options) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.dim}).eps(options.norm_eps));
}

void initialise_linear(torch::nn::Linear& linear, double std) {
  torch::nn::init::normal_(linear->weight, 0.0, std);
  if (linear->bias.defined()) torch::nn::init::zeros_(linear->bias);
}

}  // namespace

void validate(const GptOptions& options) {
  require_positive(kModel, "vocab_size", options.vocab_size);
  require_positive(kModel, "seq_len", options.seq_len);
  require_positive(kModel, "n_layers", options.n_layers);
  require_heads(kModel, options.n_heads, options.dim);
  require_eps(kModel, options.norm_eps);
  if (options.recompute_every < 0) {
    reject(fmt::format("{} options: recompute_every must be 0 (no block) or more, not {}", kModel,
                       options.recompute_every));
  }
}

AttentionImpl::AttentionImpl(const GptOptions& options) : n_heads_(options.n_heads) {
  qkv = register_module("qkv", torch::nn::Linear(options.dim, 3 * options.dim));
  projection = register_module("projection", torch::nn::Linear(options.dim, options.dim));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x) {
  return projection->forward(attend_fused(qkv->forward(x), n_heads_, /*causal=*/true));
}

MlpImpl::MlpImpl(const GptOptions& options) {
  up = register_module("up", torch::nn::Linear(options.dim, kMlpRatio * options.dim));
  projection =
      register_module("projection", torch::nn::Linear(kMlpRatio * options.dim, options.dim));
}

at::Tensor MlpImpl::forward(const at::Tensor& x) {
  return projection->forward(at::gelu(up->forward(x), "tanh"));
}

BlockImpl::BlockImpl(const GptOptions& options) {
  attention_norm = register_module("attention_norm", make_norm(options));
  attention = register_module("attention", Attention(options));
  mlp_norm = register_module("mlp_norm", make_norm(options));
  mlp = register_module("mlp", Mlp(options));
}

at::Tensor BlockImpl::forward(const at::Tensor& x) {
  const at::Tensor attended = x + attention->forward(attention_norm->forward(x));
  return attended + mlp->forward(mlp_norm->forward(attended));
}

GptImpl::GptImpl(const GptOptions& options) : options_(options) {
  validate(options);
  token_embedding =
      register_module("token_embedding", torch::nn::Embedding(options.vocab_size, options.dim));
  position_embedding =
      register_module("position_embedding", torch::nn::Embedding(options.seq_len, options.dim));
  blocks = register_module("blocks", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < options.n_layers; ++i) blocks->push_back(Block(options));
  final_norm = register_module("final_norm", make_norm(options));
  if (!options.tie_embeddings) {
    head = register_module(
        "head",
        torch::nn::Linear(torch::nn::LinearOptions(options.dim, options.vocab_size).bias(false)));
  }
  initialise();
}

void GptImpl::initialise() {
  const double residual_std = kInitStd / std::sqrt(2.0 * static_cast<double>(options_.n_layers));
  torch::nn::init::normal_(token_embedding->weight, 0.0, kInitStd);
  torch::nn::init::normal_(position_embedding->weight, 0.0, kInitStd);
  for (const auto& module : *blocks) {
    auto& block = *module->as<BlockImpl>();
    initialise_linear(block.attention->qkv, kInitStd);
    initialise_linear(block.attention->projection, residual_std);
    initialise_linear(block.mlp->up, kInitStd);
    initialise_linear(block.mlp->projection, residual_std);
  }
  if (head) initialise_linear(head, kInitStd);
}

at::Tensor GptImpl::forward(const at::Tensor& tokens) {
  if (tokens.dim() != 2) {
    reject(fmt::format("GPT takes tokens [batch, seq], not {} dimensions", tokens.dim()));
  }
  const std::int64_t seq = tokens.size(1);
  if (seq > options_.seq_len) {
    reject(fmt::format("a sequence of {} tokens is longer than the model's seq_len {}", seq,
                       options_.seq_len));
  }
  at::Tensor x = token_embedding->forward(tokens) +
                 position_embedding->forward(at::arange(seq, tokens.options()));
  x = final_norm->forward(run_blocks(x));
  return head ? head->forward(x) : at::linear(x, token_embedding->weight);
}

at::Tensor GptImpl::run_blocks(at::Tensor x) {
  const std::int64_t every = options_.recompute_every;
  std::int64_t number = 0;
  for (const auto& module : *blocks) {
    const auto block = std::dynamic_pointer_cast<BlockImpl>(module);
    const auto run = [block](const at::Tensor& in) { return block->forward(in); };
    const bool again = every > 0 && ++number % every == 0;
    // A block draws no random numbers.
    x = again ? recompute::checkpoint({.preserve_rng_state = false}, run, x) : run(x);
  }
  return x;
}

at::Tensor GptImpl::cross_entropy(const at::Tensor& tokens, const at::Tensor& targets,
                                  at::Reduction::Reduction reduction) {
  at::Tensor logits = forward(tokens);
  // Probabilities of a whole vocabulary need more digits than 16 bits have.
  if (c10::isReducedFloatingType(logits.scalar_type())) logits = logits.to(at::kFloat);
  return at::cross_entropy_loss(logits.view({-1, options_.vocab_size}), targets.reshape({-1}),
                                /*weight=*/{}, reduction);
}

at::Tensor GptImpl::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  return cross_entropy(tokens, targets, at::Reduction::Mean);
}

at::Tensor GptImpl::loss_sum(const at::Tensor& tokens, const at::Tensor& targets) {
  return cross_entropy(tokens, targets, at::Reduction::Sum);
}

std::int64_t parameter_count(const GptOptions& options) {
  const std::int64_t d = options.dim;
  const std::int64_t linears = (3 + 1 + 2 * kMlpRatio) * d * d + (3 + 1 + kMlpRatio + 1) * d;
  const std::int64_t norms = 2 * 2 * d;
  const std::int64_t tables = (options.tie_embeddings ? 1 : 2) * options.vocab_size * d;
  return options.n_layers * (linears + norms) + 2 * d + tables + options.seq_len * d;
}

double flops_per_token(const GptOptions& options, std::int64_t seq) {
  const std::int64_t looked_up =
      options.seq_len + (options.tie_embeddings ? 0 : options.vocab_size);
  const auto multiplied = static_cast<double>(parameter_count(options) - looked_up * options.dim);
  const auto attention = static_cast<double>(options.n_layers * options.dim * seq);
  return 6.0 * multiplied + 12.0 * attention;
}

}  // namespace fullshard::models
