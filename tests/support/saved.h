#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>

#include "support/training.h"

// Whole models in files of libtorch.

namespace fullshard::testing {

/// Collective: rank 0 writes the whole model.
inline void save_whole(const shard::ShardedModule& sharded, int rank, const std::string& file) {
  const auto scope = sharded.unsharded();
  if (rank == 0) torch::save(sharded.module(), file);
}

/// An unsharded model of the problem with the file's values.
inline std::shared_ptr<Model> load_plain(const Problem& task, const std::string& file) {
  const std::shared_ptr<Model> model = task.build();
  auto target = std::static_pointer_cast<torch::nn::Module>(model);
  torch::load(target, file);
  return model;
}

}  // namespace fullshard::testing
