#include "fullshard/models/bert.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <memory>
#include <string>

#include "models/attend.h"
#include "models/validation.h"

namespace fullshard::models {
namespace {

constexpr const char* kModel = "BERT";
constexpr double kInitStd = 0.02;

/// A module that only gives names to what is inside it.
std::shared_ptr<torch::nn::Module> group(torch::nn::Module& parent, const std::string& name) {
  return parent.register_module(name, std::make_shared<torch::nn::Module>(name));
}

torch::nn::LayerNorm add_norm(torch::nn::Module& parent, const BertOptions& options) {
  return parent.register_module(
      "LayerNorm",
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.dim}).eps(options.norm_eps)));
}

torch::nn::Linear add_linear(torch::nn::Module& parent, const std::string& name, std::int64_t in,
                             std::int64_t out) {
  return parent.register_module(name, torch::nn::Linear(in, out));
}

torch::nn::Embedding add_table(torch::nn::Module& parent, const std::string& name,
                               std::int64_t rows, std::int64_t dim) {
  return parent.register_module(name, torch::nn::Embedding(rows, dim));
}

}  // namespace

void validate(const BertOptions& options) {
  require_positive(kModel, "vocab_size", options.vocab_size);
  require_positive(kModel, "seq_len", options.seq_len);
  require_positive(kModel, "n_layers", options.n_layers);
  require_heads(kModel, options.n_heads, options.dim);
  require_positive(kModel, "mlp_dim", options.mlp_dim);
  require_positive(kModel, "n_token_types", options.n_token_types);
  require_eps(kModel, options.norm_eps);
}

BertLayerImpl::BertLayerImpl(const BertOptions& options) : n_heads_(options.n_heads) {
  const std::int64_t dim = options.dim;
  const auto attention = group(*this, "attention");
  const auto self = group(*attention, "self");
  query = add_linear(*self, "query", dim, dim);
  key = add_linear(*self, "key", dim, dim);
  value = add_linear(*self, "value", dim, dim);
  const auto mixed = group(*attention, "output");
  attention_output = add_linear(*mixed, "dense", dim, dim);
  attention_norm = add_norm(*mixed, options);
  up = add_linear(*group(*this, "intermediate"), "dense", dim, options.mlp_dim);
  const auto output = group(*this, "output");
  down = add_linear(*output, "dense", options.mlp_dim, dim);
  norm = add_norm(*output, options);
}

at::Tensor BertLayerImpl::forward(const at::Tensor& x, const at::Tensor& mask) {
  const at::Tensor mixed =
      attend(query->forward(x), key->forward(x), value->forward(x), n_heads_, mask);
  const at::Tensor attended = attention_norm->forward(x + attention_output->forward(mixed));
  return norm->forward(attended + down->forward(at::gelu(up->forward(attended))));
}

BertImpl::BertImpl(const BertOptions& options) : options_(options) {
  validate(options);
  const auto bert = group(*this, "bert");
  add_embeddings(*bert);
  layers = group(*bert, "encoder")->register_module("layer", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < options.n_layers; ++i) layers->push_back(BertLayer(options));
  add_head();
  initialise();
}

void BertImpl::add_embeddings(torch::nn::Module& bert) {
  const auto embeddings = group(bert, "embeddings");
  const std::int64_t dim = options_.dim;
  word_embeddings = add_table(*embeddings, "word_embeddings", options_.vocab_size, dim);
  position_embeddings = add_table(*embeddings, "position_embeddings", options_.seq_len, dim);
  token_type_embeddings =
      add_table(*embeddings, "token_type_embeddings", options_.n_token_types, dim);
  embedding_norm = add_norm(*embeddings, options_);
}

void BertImpl::add_head() {
  const auto predictions = group(*group(*this, "cls"), "predictions");
  head_bias = predictions->register_parameter("bias", at::zeros({options_.vocab_size}));
  const auto named = group(*predictions, "transform");
  transform = add_linear(*named, "dense", options_.dim, options_.dim);
  transform_norm = add_norm(*named, options_);
}

void BertImpl::initialise() {
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* linear = module->as<torch::nn::LinearImpl>()) {
      torch::nn::init::normal_(linear->weight, 0.0, kInitStd);
      torch::nn::init::zeros_(linear->bias);
    } else if (auto* table = module->as<torch::nn::EmbeddingImpl>()) {
      torch::nn::init::normal_(table->weight, 0.0, kInitStd);
    }
  }
}

at::Tensor BertImpl::embed(const at::Tensor& tokens, const at::Tensor& token_types) {
  const at::Tensor places = at::arange(tokens.size(1), tokens.options());
  const at::Tensor types = token_types.defined() ? token_types : at::zeros_like(tokens);
  return embedding_norm->forward(word_embeddings->forward(tokens) +
                                 position_embeddings->forward(places) +
                                 token_type_embeddings->forward(types));
}

at::Tensor BertImpl::predict(const at::Tensor& x) {
  const at::Tensor transformed = transform_norm->forward(at::gelu(transform->forward(x)));
  return at::linear(transformed, word_embeddings->weight, head_bias);
}

at::Tensor BertImpl::forward(const at::Tensor& tokens, const at::Tensor& token_types,
                             const at::Tensor& mask) {
  if (tokens.dim() != 2) {
    reject(fmt::format("BERT takes tokens [batch, seq], not {} dimensions", tokens.dim()));
  }
  if (tokens.size(1) > options_.seq_len) {
    reject(fmt::format("a sequence of {} tokens is longer than the model's seq_len {}",
                       tokens.size(1), options_.seq_len));
  }
  const at::Tensor seen = mask.defined() ? mask.unsqueeze(1).unsqueeze(1) : mask;
  at::Tensor x = embed(tokens, token_types);
  for (const auto& layer : *layers) x = layer->as<BertLayerImpl>()->forward(x, seen);
  return predict(x);
}

at::Tensor BertImpl::loss(const at::Tensor& tokens, const at::Tensor& targets,
                          const at::Tensor& token_types, const at::Tensor& mask) {
  const at::Tensor logits = forward(tokens, token_types, mask);
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

std::int64_t parameter_count(const BertOptions& options) {
  const std::int64_t d = options.dim;
  const std::int64_t norm = 2 * d;
  const std::int64_t square = (d + 1) * d;
  const std::int64_t tables =
      (options.vocab_size + options.seq_len + options.n_token_types) * d + norm;
  const std::int64_t mlp = (d + 1) * options.mlp_dim + (options.mlp_dim + 1) * d;
  const std::int64_t layer = 4 * square + mlp + 2 * norm;
  const std::int64_t head = square + norm + options.vocab_size;
  return tables + options.n_layers * layer + head;
}

}  // namespace fullshard::models
