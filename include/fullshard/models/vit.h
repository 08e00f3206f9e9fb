#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace fullshard::models {

/// Shape of a vision transformer (Dosovitskiy et al. 2020). The defaults are ViT-B/16.
struct VitOptions {
  std::int64_t image_size = 224;  ///< pixels a side
  std::int64_t patch_size = 16;   ///< must divide image_size
  std::int64_t in_channels = 3;
  std::int64_t dim = 768;
  std::int64_t n_layers = 12;
  std::int64_t n_heads = 12;  ///< must divide dim
  std::int64_t mlp_dim = 3072;
  std::int64_t n_classes = 1000;
  /// Classifies what a token of its own has gathered. Off: the mean of the patches.
  bool class_token = true;
  double norm_eps = 1e-6;
};

/// Throws kInvalidArgument naming the field that cannot be used.
void validate(const VitOptions& options);

/// Self-attention over [batch, tokens, dim]. Rows of in_proj_weight are queries, keys and values
/// behind one another, each head by head; columns of out_proj.weight are head by head. Atoms kRow
/// and kColumn with `group` a multiple of dim / n_heads therefore keep heads whole.
class VitAttentionImpl : public torch::nn::Module {
 public:
  explicit VitAttentionImpl(const VitOptions& options);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor in_proj_weight;  ///< [3 * dim, dim]
  at::Tensor in_proj_bias;    ///< [3 * dim]
  torch::nn::Linear out_proj{nullptr};

 private:
  std::int64_t n_heads_;
};
TORCH_MODULE(VitAttention);

/// x + attention(norm(x)), then x + mlp(norm(x)): the natural unit of sharding.
class VitBlockImpl : public torch::nn::Module {
 public:
  explicit VitBlockImpl(const VitOptions& options);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::LayerNorm ln_1{nullptr};
  VitAttention self_attention{nullptr};
  torch::nn::LayerNorm ln_2{nullptr};
  torch::nn::Sequential mlp{nullptr};
};
TORCH_MODULE(VitBlock);

/// The classifier. A plain module without dropout whose parameters have torchvision's names
/// (encoder.layers.encoder_layer_0.self_attention.in_proj_weight, heads.head.bias) and its initial
/// values, of which the head's are zero; drawn from torch's default generator in a fixed order.
class VitImpl : public torch::nn::Module {
 public:
  explicit VitImpl(const VitOptions& options);

  /// images [batch, in_channels, image_size, image_size] -> logits [batch, n_classes]. Throws
  /// kInvalidArgument for images of another shape.
  at::Tensor forward(const at::Tensor& images);

  /// Mean cross-entropy of classes [batch] int64 in nats an image, a scalar.
  at::Tensor loss(const at::Tensor& images, const at::Tensor& classes);

  const VitOptions& options() const { return options_; }

  at::Tensor class_token;  ///< [1, 1, dim]; undefined without one
  torch::nn::Conv2d conv_proj{nullptr};
  at::Tensor pos_embedding;  ///< [1, tokens, dim]
  torch::nn::Sequential layers{nullptr};
  torch::nn::LayerNorm ln{nullptr};
  torch::nn::Linear head{nullptr};

 private:
  void add_encoder();
  void initialise();
  at::Tensor tokens_of(const at::Tensor& images);

  VitOptions options_;
};
TORCH_MODULE(Vit);

/// Parameters of a Vit of this shape.
std::int64_t parameter_count(const VitOptions& options);

}  // namespace fullshard::models
