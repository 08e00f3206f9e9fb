#include "fullshard/models/vit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>

#include "models/attend.h"
#include "models/validation.h"

namespace fullshard::models {
namespace {

constexpr const char* kModel = "ViT";
constexpr double kPositionStd = 0.02;
constexpr double kBiasStd = 1e-6;

torch::nn::LayerNorm make_norm(const VitOptions& options) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.dim}).eps(options.norm_eps));
}

/// As torchvision's, whose layers of dropout are places 2 and 4 of the sequence.
torch::nn::Sequential make_mlp(const VitOptions& options) {
  const torch::nn::DropoutOptions none(0.0);
  torch::nn::Sequential mlp(
      torch::nn::Linear(options.dim, options.mlp_dim), torch::nn::GELU(), torch::nn::Dropout(none),
      torch::nn::Linear(options.mlp_dim, options.dim), torch::nn::Dropout(none));
  for (const std::size_t layer : {0U, 3U}) {
    auto& linear = mlp->at<torch::nn::LinearImpl>(layer);
    torch::nn::init::xavier_uniform_(linear.weight);
    torch::nn::init::normal_(linear.bias, 0.0, kBiasStd);
  }
  return mlp;
}

std::int64_t token_count(const VitOptions& options) {
  const std::int64_t side = options.image_size / options.patch_size;
  return side * side + (options.class_token ? 1 : 0);
}

}  // namespace

void validate(const VitOptions& options) {
  require_positive(kModel, "image_size", options.image_size);
  require_positive(kModel, "patch_size", options.patch_size);
  if (options.image_size % options.patch_size != 0) {
    reject(fmt::format("ViT options: patch_size {} must divide image_size {}", options.patch_size,
                       options.image_size));
  }
  require_positive(kModel, "in_channels", options.in_channels);
  require_positive(kModel, "n_layers", options.n_layers);
  require_heads(kModel, options.n_heads, options.dim);
  require_positive(kModel, "mlp_dim", options.mlp_dim);
  require_positive(kModel, "n_classes", options.n_classes);
  require_eps(kModel, options.norm_eps);
}

VitAttentionImpl::VitAttentionImpl(const VitOptions& options) : n_heads_(options.n_heads) {
  in_proj_weight = register_parameter("in_proj_weight", at::empty({3 * options.dim, options.dim}));
  in_proj_bias = register_parameter("in_proj_bias", at::zeros({3 * options.dim}));
  out_proj = register_module("out_proj", torch::nn::Linear(options.dim, options.dim));
  torch::nn::init::xavier_uniform_(in_proj_weight);
  torch::nn::init::zeros_(out_proj->bias);
}

at::Tensor VitAttentionImpl::forward(const at::Tensor& x) {
  const at::Tensor qkv = at::linear(x, in_proj_weight, in_proj_bias);
  return out_proj->forward(attend_fused(qkv, n_heads_, /*causal=*/false));
}

VitBlockImpl::VitBlockImpl(const VitOptions& options) {
  ln_1 = register_module("ln_1", make_norm(options));
  self_attention = register_module("self_attention", VitAttention(options));
  ln_2 = register_module("ln_2", make_norm(options));
  mlp = register_module("mlp", make_mlp(options));
}

at::Tensor VitBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor attended = x + self_attention->forward(ln_1->forward(x));
  return attended + mlp->forward(ln_2->forward(attended));
}

VitImpl::VitImpl(const VitOptions& options) : options_(options) {
  validate(options);
  if (options.class_token) {
    class_token = register_parameter("class_token", at::zeros({1, 1, options.dim}));
  }
  conv_proj = register_module(
      "conv_proj", torch::nn::Conv2d(torch::nn::Conv2dOptions(options.in_channels, options.dim,
                                                              options.patch_size)
                                         .stride(options.patch_size)));
  add_encoder();
  const auto heads = register_module("heads", std::make_shared<torch::nn::Module>("heads"));
  head = heads->register_module("head", torch::nn::Linear(options.dim, options.n_classes));
  initialise();
}

void VitImpl::add_encoder() {
  const auto encoder = register_module("encoder", std::make_shared<torch::nn::Module>("encoder"));
  pos_embedding = encoder->register_parameter("pos_embedding",
                                              at::empty({1, token_count(options_), options_.dim}));
  layers = encoder->register_module("layers", torch::nn::Sequential());
  for (std::int64_t i = 0; i < options_.n_layers; ++i) {
    layers->push_back(fmt::format("encoder_layer_{}", i), VitBlock(options_));
  }
  ln = encoder->register_module("ln", make_norm(options_));
}

void VitImpl::initialise() {
  // torchvision cuts the normal distribution off at 2, which is far beyond any value drawn.
  const auto patch_elements =
      static_cast<double>(options_.in_channels * options_.patch_size * options_.patch_size);
  torch::nn::init::normal_(conv_proj->weight, 0.0, std::sqrt(1 / patch_elements));
  torch::nn::init::zeros_(conv_proj->bias);
  torch::nn::init::normal_(pos_embedding, 0.0, kPositionStd);
  torch::nn::init::zeros_(head->weight);
  torch::nn::init::zeros_(head->bias);
}

/// [batch, channels, height, width] -> [batch, tokens, dim]
at::Tensor VitImpl::tokens_of(const at::Tensor& images) {
  const at::Tensor patches = conv_proj->forward(images).flatten(2).transpose(1, 2);
  if (!options_.class_token) return patches;
  return at::cat({class_token.expand({images.size(0), -1, -1}), patches}, 1);
}

at::Tensor VitImpl::forward(const at::Tensor& images) {
  const std::int64_t side = options_.image_size;
  if (images.dim() != 4 ||
      images.sizes().slice(1) != at::IntArrayRef({options_.in_channels, side, side})) {
    reject(fmt::format("this ViT takes images [batch, {}, {}, {}], not [{}]", options_.in_channels,
                       side, side, fmt::join(images.sizes(), ", ")));
  }
  const at::Tensor x = ln->forward(layers->forward(tokens_of(images) + pos_embedding));
  return head->forward(options_.class_token ? x.select(1, 0) : x.mean(1));
}

at::Tensor VitImpl::loss(const at::Tensor& images, const at::Tensor& classes) {
  return at::cross_entropy_loss(forward(images), classes);
}

std::int64_t parameter_count(const VitOptions& options) {
  const std::int64_t d = options.dim;
  const std::int64_t norm = 2 * d;
  const std::int64_t mlp = (d + 1) * options.mlp_dim + (options.mlp_dim + 1) * d;
  const std::int64_t block = 4 * (d + 1) * d + mlp + 2 * norm;
  const std::int64_t patch = options.in_channels * options.patch_size * options.patch_size;
  const std::int64_t tokens = token_count(options) + (options.class_token ? 1 : 0);
  return (patch + 1) * d + tokens * d + options.n_layers * block + norm +
         (d + 1) * options.n_classes;
}

}  // namespace fullshard::models
