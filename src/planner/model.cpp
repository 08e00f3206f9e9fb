#include "fullshard/planner/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "fullshard/base/error.h"
#include "fullshard/base/text.h"

namespace fullshard::planner {
namespace {

constexpr std::int64_t kMostOfAnything = std::int64_t{1} << 24;
constexpr std::int64_t kChannels = 3;  // of an image

const std::vector<ModelShape>& known_models() {
  static const std::vector<ModelShape> kModels = {
      {.name = "gpt2-124m"},
      {.name = "gpt2-355m", .layers = 24, .dim = 1024, .heads = 16},
      {.name = "gpt2-774m", .layers = 36, .dim = 1280, .heads = 20},
      {.name = "gpt2-xl", .layers = 48, .dim = 1600, .heads = 25},
      {.name = "vit-b16", .kind = ModelKind::kEncoder, .vocab = 1000, .seq = 197},
      {.name = "vit-l16",
       .kind = ModelKind::kEncoder,
       .layers = 24,
       .dim = 1024,
       .heads = 16,
       .vocab = 1000,
       .seq = 197},
      {.name = "bench-a", .seq = 256},
      {.name = "bench-b", .seq = 128},
      {.name = "bench-c", .layers = 6, .dim = 384, .heads = 6, .vocab = 256, .seq = 256}};
  return kModels;
}

[[noreturn]] void reject(const std::string& message) {
  throw base::Error(base::ErrorCode::kUsage, message);
}

void require(const char* flag, std::int64_t value, std::int64_t low) {
  if (value >= low && value <= kMostOfAnything) return;
  reject(fmt::format("--{}: found {}; expected an integer from {} to {}", flag, value, low,
                     kMostOfAnything));
}

class Describer {
 public:
  Describer(const ModelShape& shape, base::DType dtype) : shape_(shape), dtype_(dtype) {}

  std::vector<Stage> stages() {
    add_embedding();
    for (int block = 0; block < shape_.layers; ++block) {
      add_attention(block);
      add_mlp(block);
    }
    add_last();
    return std::move(stages_);
  }

 private:
  bool decodes() const { return shape_.kind == ModelKind::kDecoder; }

  void add_embedding() {
    Stage& stage = stages_.emplace_back();
    stage.looks_up = true;
    if (decodes()) {
      stage.modules = {"token_embedding", "position_embedding"};
      add(stage, "token_embedding.weight", {shape_.vocab, shape_.dim});
      add(stage, "position_embedding.weight", {shape_.seq, shape_.dim});
      return;
    }
    stage.modules = {"conv_proj"};
    add(stage, "class_token", {1, 1, shape_.dim});
    add(stage, "conv_proj.weight", {shape_.dim, kChannels, shape_.patch, shape_.patch});
    add(stage, "conv_proj.bias", {shape_.dim});
    stage.forward_flops = multiplied(stage);
    add(stage, "encoder.pos_embedding", {1, shape_.seq, shape_.dim});
  }

  void add_attention(int block) {
    Stage& stage = add_block_stage(block);
    const std::string norm = stage.block_module + (decodes() ? ".attention_norm" : ".ln_1");
    const std::string module = stage.block_module + (decodes() ? ".attention" : ".self_attention");
    const std::string first = module + (decodes() ? ".qkv." : ".in_proj_");
    stage.modules = {norm, module};
    add_affine(stage, norm + ".", {shape_.dim});
    add_affine(stage, first, {3 * shape_.dim, shape_.dim});
    add_affine(stage, module + (decodes() ? ".projection." : ".out_proj."),
               {shape_.dim, shape_.dim});
    const auto scores = static_cast<double>(shape_.dim * shape_.seq);
    stage.forward_flops = multiplied(stage) + 4 * scores;
  }

  void add_mlp(int block) {
    Stage& stage = add_block_stage(block);
    const std::string norm = stage.block_module + (decodes() ? ".mlp_norm" : ".ln_2");
    const std::string module = stage.block_module + ".mlp";
    const std::int64_t hidden = shape_.mlp_ratio * shape_.dim;
    stage.modules = {norm, module};
    add_affine(stage, norm + ".", {shape_.dim});
    add_affine(stage, module + (decodes() ? ".up." : ".0."), {hidden, shape_.dim});
    add_affine(stage, module + (decodes() ? ".projection." : ".3."), {shape_.dim, hidden});
    stage.forward_flops = multiplied(stage);
  }

  void add_last() {
    Stage& stage = stages_.emplace_back();
    stage.modules = {decodes() ? "final_norm" : "encoder.ln"};
    add_affine(stage, stage.modules[0] + ".", {shape_.dim});
    stage.forward_flops = multiplied(stage);
    const double head = 2.0 * static_cast<double>(shape_.vocab * shape_.dim);
    if (!decodes()) {
      stage.modules.emplace_back("heads.head");
      add_affine(stage, "heads.head.", {shape_.vocab, shape_.dim});
      stage.forward_flops += head / static_cast<double>(shape_.seq);
      return;
    }
    stage.forward_flops += head;
    if (shape_.tie_embeddings) return;
    stage.modules.emplace_back("head");
    add(stage, "head.weight", {shape_.vocab, shape_.dim});
  }

  Stage& add_block_stage(int block) {
    Stage& stage = stages_.emplace_back();
    stage.block = block;
    stage.block_module = fmt::format("{}{}", block_prefix(shape_.kind), block);
    return stage;
  }

  /// A weight, and a bias for its first dimension.
  void add_affine(Stage& stage, const std::string& prefix, std::vector<std::int64_t> shape) {
    const std::int64_t out = shape.front();
    add(stage, prefix + "weight", std::move(shape));
    add(stage, prefix + "bias", {out});
  }

  void add(Stage& stage, std::string name, std::vector<std::int64_t> shape) {
    stage.parameters.push_back(
        {.name = std::move(name), .shape = std::move(shape), .dtype = dtype_});
  }

  static double multiplied(const Stage& stage) {
    double elements = 0;
    for (const layout::ParameterSpec& parameter : stage.parameters) {
      elements += static_cast<double>(layout::numel(parameter.name, parameter.shape));
    }
    return 2 * elements;
  }

  const ModelShape& shape_;
  base::DType dtype_;
  std::vector<Stage> stages_;
};

}  // namespace

void validate(const ModelShape& shape) {
  require("layers", shape.layers, 1);
  require("dim", shape.dim, 1);
  require("heads", shape.heads, 1);
  require("vocab", shape.vocab, 1);
  require("seq", shape.seq, 1);
  require("mlp-ratio", shape.mlp_ratio, 1);
  require("patch", shape.patch, 1);
  if (shape.dim % shape.heads != 0) {
    reject(
        fmt::format("--heads: found {}; expected a divisor of --dim {}", shape.heads, shape.dim));
  }
}

ModelShape named_model(std::string_view name) {
  for (const ModelShape& shape : known_models()) {
    if (shape.name == name) return shape;
  }
  reject(fmt::format("--model: found \"{}\"; expected one of {}", name,
                     fmt::join(model_names(), ", ")));
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const ModelShape& shape : known_models()) names.push_back(shape.name);
  return names;
}

std::string block_prefix(ModelKind kind) {
  return kind == ModelKind::kDecoder ? "blocks." : "encoder.layers.encoder_layer_";
}

std::vector<Stage> stages_of(const ModelShape& shape, base::DType dtype) {
  return Describer(shape, dtype).stages();
}

std::int64_t parameter_count(const ModelShape& shape) {
  std::int64_t elements = 0;
  for (const Stage& stage : stages_of(shape)) {
    for (const layout::ParameterSpec& parameter : stage.parameters) {
      elements += layout::numel(parameter.name, parameter.shape);
    }
  }
  return elements;
}

std::int64_t tied_elements(const ModelShape& shape) {
  const bool tied = shape.kind == ModelKind::kDecoder && shape.tie_embeddings;
  return tied ? shape.vocab * shape.dim : 0;
}

double flops_per_token(const ModelShape& shape) {
  double forward = 0;
  for (const Stage& stage : stages_of(shape)) forward += stage.forward_flops;
  return 3 * forward;
}

ActivationElements activation_elements(const ModelShape& shape) {
  const auto dim = static_cast<double>(shape.dim);
  const double per_token =
      shape.kind == ModelKind::kDecoder ? 1 : 1.0 / static_cast<double>(shape.seq);
  return {.block = (8.5 + 2 * static_cast<double>(shape.mlp_ratio)) * dim,
          .block_input = dim,
          .last = 4 * static_cast<double>(shape.vocab) * per_token};
}

}  // namespace fullshard::planner
