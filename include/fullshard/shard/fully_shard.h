#pragma once

#include <memory>
#include <utility>

#include "fullshard/shard/sharded_module.h"

namespace fullshard::shard {

/// Shards `module` over the ranks of `mesh`. Collective: every rank passes a module of the same
/// structure. The module's parameters are replaced by paged ones of the same names and shapes; the
/// model's code does not change. Throws base::Error when the module is sharded already or has
/// a parameter that cannot be sharded, naming it; the module is then as it was.
ShardedModule fully_shard(const std::shared_ptr<torch::nn::Module>& module, const comm::Mesh& mesh,
                          const FullyShardOptions& options = {});

/// The same for a TorchScript module, for instance one exported from Python. Save it inside
/// `unsharded()`: module.save(path) writes a file that Python loads.
ShardedModule fully_shard(const torch::jit::Module& module, const comm::Mesh& mesh,
                          const FullyShardOptions& options = {});

/// The same for a module holder such as the ones TORCH_MODULE makes.
template <typename Contained>
ShardedModule fully_shard(const torch::nn::ModuleHolder<Contained>& holder, const comm::Mesh& mesh,
                          const FullyShardOptions& options = {}) {
  return fully_shard(std::static_pointer_cast<torch::nn::Module>(holder.ptr()), mesh, options);
}

/// A sharded model as one object that can be called: the module's forward plus the handle's
/// methods.
template <typename Model>
class FullyShardedDataParallel : public ShardedModule {
 public:
  FullyShardedDataParallel(std::shared_ptr<Model> model, const comm::Mesh& mesh,
                           const FullyShardOptions& options = {})
      : ShardedModule(
            fully_shard(std::static_pointer_cast<torch::nn::Module>(model), mesh, options)),
        model_(std::move(model)) {}

  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) {
    return model_->forward(std::forward<Arguments>(arguments)...);
  }

  Model* operator->() const { return model_.get(); }

 private:
  std::shared_ptr<Model> model_;
};

}  // namespace fullshard::shard
