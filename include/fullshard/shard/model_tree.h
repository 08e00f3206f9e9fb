#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace fullshard::shard {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// A module of a model as sharding sees it, whether it was written in C++ or exported from Python.
struct ModelNode {
  std::string name;  ///< dotted; empty for the root
  std::string
      class_name;  ///< as libtorch or TorchScript call it, for instance "torch::nn::LinearImpl"
  bool is_layer_list = false;                 ///< a ModuleList or Sequential
  const torch::nn::Module* module = nullptr;  ///< null for TorchScript
  std::vector<NamedTensor> parameters;        ///< its own, with dotted names
  std::vector<ModelNode> children;            ///< a module with two names is here under both

  /// Elements of all parameters in the subtree, a tied one as often as it occurs.
  std::int64_t elements() const;
};

/// Whether `name` is the node's class, as class_name has it or as the compiler does, with or
/// without leading namespaces or packages: "LinearImpl" and "torch::nn::LinearImpl" are the same.
bool is_of_class(const ModelNode& node, std::string_view name);

/// A whole model.
struct ModelTree {
  ModelNode root;
  std::shared_ptr<torch::nn::Module> module;          ///< null for TorchScript
  std::function<std::vector<NamedTensor>()> buffers;  ///< as they are now, with dotted names
};

ModelTree tree_of(const std::shared_ptr<torch::nn::Module>& module);
ModelTree tree_of(const torch::jit::Module& module);

/// `visit` for the node and every node below it, parents first.
void for_each_node(const ModelNode& node, const std::function<void(const ModelNode&)>& visit);

}  // namespace fullshard::shard
