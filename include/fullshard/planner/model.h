#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fullshard/layout/parameter.h"

namespace fullshard::planner {

/// A transformer as the planner knows it. A decoder has the parameters of models::Gpt, by name and
/// shape; an encoder those of models::Vit with its class token, which have torchvision's names: the
/// same blocks, a projection of patches in place of the token table, and a classifier that sees one
/// token of a sequence.
enum class ModelKind { kDecoder, kEncoder };

struct ModelShape {
  std::string name = "gpt";
  ModelKind kind = ModelKind::kDecoder;
  std::int64_t layers = 12;
  std::int64_t dim = 768;
  std::int64_t heads = 12;     ///< divides dim
  std::int64_t vocab = 50304;  ///< of an encoder: classes
  std::int64_t seq = 1024;     ///< tokens of a sequence, and rows of the position table
  std::int64_t mlp_ratio = 4;  ///< width inside an MLP, in dim
  std::int64_t patch = 16;     ///< of an encoder: pixels of a patch's side, 3 numbers each
  bool tie_embeddings = true;  ///< of a decoder: the head is the token table itself
};

/// Throws base::Error(kUsage) naming the flag that cannot be used and what would be right.
void validate(const ModelShape& shape);

/// A known shape: gpt2-124m, gpt2-355m, gpt2-774m, gpt2-xl, vit-b16, vit-l16, and bench-a, bench-b
/// and bench-c of docs/benchmarks.md. Throws base::Error(kUsage) for any other name.
ModelShape named_model(std::string_view name);
std::vector<std::string> model_names();

/// A part of the model that is computed at once: the embedding, the attention of a block with the
/// norm before it, the MLP of a block with its norm, or what follows the last block.
struct Stage {
  std::vector<std::string> modules;               ///< dotted names
  std::vector<layout::ParameterSpec> parameters;  ///< those that no stage before it has
  int block = -1;                                 ///< number of its block; -1 outside
  std::string block_module = {};                  ///< its block's dotted name
  bool looks_up = false;  ///< its backward reads no parameter: the embedding
  /// Floating-point operations of its forward, a token; its backward has twice as many. With all
  /// stages, 3 times their sum is 6 N + 12 L d S (models::flops_per_token).
  double forward_flops = 0;
};

/// What stands before a block's number in the names of its parameters.
std::string block_prefix(ModelKind kind);

/// In the order of a forward, which is that of named_parameters().
std::vector<Stage> stages_of(const ModelShape& shape, base::DType dtype = base::DType::kFloat32);

/// Elements of all parameters, a tied one once.
std::int64_t parameter_count(const ModelShape& shape);

/// Elements of the token table where it is also the head, so that autograd adds up two gradients of
/// it; else 0.
std::int64_t tied_elements(const ModelShape& shape);

/// Of one training step, forward and backward, a token.
double flops_per_token(const ModelShape& shape);

/// Elements that a forward leaves behind for its backward, a token (docs/design/memory.md): in each
/// block 2 d inputs of norms, 2 d outputs of them, 3 d queries, keys and values, 1.5 d attention's
/// output, and the hidden layer before and after its activation function; behind the blocks the
/// logits, their log-softmax and the gradients of both.
struct ActivationElements {
  double block = 0;        ///< of one block
  double block_input = 0;  ///< of it, what a recomputed block keeps: its input
  double last = 0;         ///< behind the last block
};
ActivationElements activation_elements(const ModelShape& shape);

}  // namespace fullshard::planner
