#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "fullshard/models/gpt.h"
#include "fullshard/models/vit.h"
#include "fullshard/planner/model.h"

// What the planner says of models is what the models are.

namespace fullshard::planner {
namespace {

using Described = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

Described real(const torch::nn::Module& module) {
  Described found;
  for (const auto& parameter : module.named_parameters()) {
    found.emplace_back(parameter.key(), parameter.value().sizes().vec());
  }
  return found;
}

Described planned(const ModelShape& shape) {
  Described found;
  for (const Stage& stage : stages_of(shape)) {
    for (const auto& parameter : stage.parameters) {
      found.emplace_back(parameter.name, parameter.shape);
    }
  }
  return found;
}

ModelShape shape_of(const models::GptOptions& options) {
  return {.layers = options.n_layers,
          .dim = options.dim,
          .heads = options.n_heads,
          .vocab = options.vocab_size,
          .seq = options.seq_len,
          .tie_embeddings = options.tie_embeddings};
}

TEST(RealModels, GptHasTheParametersThatAreDescribed) {
  for (const bool tied : {true, false}) {
    const models::GptOptions options{.vocab_size = 11,
                                     .seq_len = 7,
                                     .dim = 8,
                                     .n_layers = 3,
                                     .n_heads = 2,
                                     .tie_embeddings = tied};
    EXPECT_EQ(planned(shape_of(options)), real(*models::Gpt(options)));
    EXPECT_EQ(parameter_count(shape_of(options)), models::parameter_count(options));
    EXPECT_DOUBLE_EQ(flops_per_token(shape_of(options)), models::flops_per_token(options, 7));
  }
}

TEST(RealModels, VitHasTheParametersThatAreDescribed) {
  const models::VitOptions options{.image_size = 8,
                                   .patch_size = 4,
                                   .dim = 8,
                                   .n_layers = 2,
                                   .n_heads = 2,
                                   .mlp_dim = 24,
                                   .n_classes = 5};
  const ModelShape shape{.kind = ModelKind::kEncoder,
                         .layers = 2,
                         .dim = 8,
                         .heads = 2,
                         .vocab = 5,
                         .seq = 5,
                         .mlp_ratio = 3,
                         .patch = 4};
  EXPECT_EQ(planned(shape), real(*models::Vit(options)));
  EXPECT_EQ(parameter_count(shape), models::parameter_count(options));
}

}  // namespace
}  // namespace fullshard::planner
