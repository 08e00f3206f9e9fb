#pragma once

#include <ATen/core/Reduction.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace fullshard::models {

/// Shape of a GPT-2 style decoder.
struct GptOptions {
  std::int64_t vocab_size = 256;
  std::int64_t seq_len = 256;  ///< longest sequence; rows of the position table
  std::int64_t dim = 128;
  std::int64_t n_layers = 4;
  std::int64_t n_heads = 4;    ///< must divide dim
  bool tie_embeddings = true;  ///< the head is the token table itself
  double norm_eps = 1e-5;
  /// Activation checkpointing: of every n-th block only the input is kept for backward, where the
  /// block runs again; 1 for every block, 0 for none. Smaller saves memory, at the price of one
  /// more forward of those blocks. Gradients are the same.
  std::int64_t recompute_every = 0;
};

/// Throws kInvalidArgument naming the field that cannot be used.
void validate(const GptOptions& options);

/// Causal self-attention over [batch, seq, dim].
class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear qkv{nullptr};
  torch::nn::Linear projection{nullptr};

 private:
  std::int64_t n_heads_;
};
TORCH_MODULE(Attention);

/// Two linear layers, four times as wide between them, with the tanh form of GELU.
class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear up{nullptr};
  torch::nn::Linear projection{nullptr};
};
TORCH_MODULE(Mlp);

/// x + attention(norm(x)), then x + mlp(norm(x)): the natural unit of sharding.
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::LayerNorm attention_norm{nullptr};
  Attention attention{nullptr};
  torch::nn::LayerNorm mlp_norm{nullptr};
  Mlp mlp{nullptr};
};
TORCH_MODULE(Block);

/// The decoder. A plain module: nothing in it knows of ranks, shards or precision, and
/// `to(kDouble)` works on it. Initial values follow GPT-2: normal(0, 0.02), projections back into
/// the residual stream divided by sqrt(2 * n_layers), zero biases, unit norms; drawn from torch's
/// default generator in a fixed order, so torch::manual_seed decides them.
class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const GptOptions& options);

  /// tokens [batch, seq] int64 -> logits [batch, seq, vocab_size].
  /// Throws kInvalidArgument when seq is longer than options().seq_len.
  at::Tensor forward(const at::Tensor& tokens);

  /// Mean cross-entropy of targets [batch, seq] in nats a token, a scalar. Targets of -100 count
  /// for nothing.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);

  /// The sum in place of the mean: what adds up over micro-batches and ranks with different numbers
  /// of targets. 0 when none counts.
  at::Tensor loss_sum(const at::Tensor& tokens, const at::Tensor& targets);

  const GptOptions& options() const { return options_; }

  torch::nn::Embedding token_embedding{nullptr};
  torch::nn::Embedding position_embedding{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::LayerNorm final_norm{nullptr};
  torch::nn::Linear head{nullptr};  ///< null when tied

 private:
  void initialise();
  at::Tensor run_blocks(at::Tensor x);
  at::Tensor cross_entropy(const at::Tensor& tokens, const at::Tensor& targets,
                           at::Reduction::Reduction reduction);
  GptOptions options_;
};
TORCH_MODULE(Gpt);

/// Parameters of a Gpt of this shape; a tied table counts once.
std::int64_t parameter_count(const GptOptions& options);

/// Floating-point operations of one training step a token (forward and backward) at sequence length
/// `seq`: 6 N + 12 L d S, after Chowdhery et al., "PaLM" (2022), appendix B. N leaves out the
/// tables that are only looked up: positions, and the token table unless it is tied to the head.
/// Attention is counted as if unmasked, as there.
double flops_per_token(const GptOptions& options, std::int64_t seq);

}  // namespace fullshard::models
