#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace fullshard::models {

/// Shape of a BERT encoder (Devlin et al. 2018). The defaults are BERT-base.
struct BertOptions {
  std::int64_t vocab_size = 30522;
  std::int64_t seq_len = 512;  ///< longest sequence; rows of the position table
  std::int64_t dim = 768;
  std::int64_t n_layers = 12;
  std::int64_t n_heads = 12;    ///< must divide dim
  std::int64_t mlp_dim = 3072;  ///< between the two matrices of a layer's MLP
  std::int64_t n_token_types = 2;
  double norm_eps = 1e-12;
};

/// Throws kInvalidArgument naming the field that cannot be used.
void validate(const BertOptions& options);

/// norm(x + attention(x)), then norm(x + mlp(x)): the natural unit of sharding.
class BertLayerImpl : public torch::nn::Module {
 public:
  explicit BertLayerImpl(const BertOptions& options);

  /// [batch, seq, dim] -> [batch, seq, dim]; `mask` [batch, 1, 1, seq] is true where a token may be
  /// seen, undefined: everywhere.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask);

  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr};
  torch::nn::Linear attention_output{nullptr};
  torch::nn::LayerNorm attention_norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
  torch::nn::LayerNorm norm{nullptr};

 private:
  std::int64_t n_heads_;
};
TORCH_MODULE(BertLayer);

/// The encoder with its masked-language-model head, whose matrix is the token table itself. A plain
/// module without dropout. Parameters have the names of Hugging Face's BertForMaskedLM
/// (bert.encoder.layer.0.attention.self.query.weight, cls.predictions.bias) and its initial values:
/// normal(0, 0.02), zero biases, unit norms; drawn from torch's default generator in a fixed order.
class BertImpl : public torch::nn::Module {
 public:
  explicit BertImpl(const BertOptions& options);

  /// tokens [batch, seq] int64 -> logits [batch, seq, vocab_size]. `token_types` [batch, seq]
  /// int64, undefined: all 0. `mask` [batch, seq] bool is false for padding, undefined: there is
  /// none. Throws kInvalidArgument when seq is longer than options().seq_len.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& token_types = {},
                     const at::Tensor& mask = {});

  /// Mean cross-entropy of targets [batch, seq] int64 in nats a masked token, a scalar. The target
  /// of a token that is not masked is -100 and counts for nothing.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets,
                  const at::Tensor& token_types = {}, const at::Tensor& mask = {});

  const BertOptions& options() const { return options_; }

  torch::nn::Embedding word_embeddings{nullptr};
  torch::nn::Embedding position_embeddings{nullptr};
  torch::nn::Embedding token_type_embeddings{nullptr};
  torch::nn::LayerNorm embedding_norm{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::Linear transform{nullptr};
  torch::nn::LayerNorm transform_norm{nullptr};
  at::Tensor head_bias;  ///< [vocab_size]

 private:
  void add_embeddings(torch::nn::Module& bert);
  void add_head();
  void initialise();
  at::Tensor embed(const at::Tensor& tokens, const at::Tensor& token_types);
  at::Tensor predict(const at::Tensor& x);

  BertOptions options_;
};
TORCH_MODULE(Bert);

/// Parameters of a Bert of this shape; the tied table counts once.
std::int64_t parameter_count(const BertOptions& options);

}  // namespace fullshard::models
