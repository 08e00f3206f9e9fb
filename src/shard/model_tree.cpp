#include "fullshard/shard/model_tree.h"

#include <c10/util/Type.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <typeinfo>

namespace fullshard::shard {
namespace {

std::string dotted(const std::string& module, const std::string& leaf) {
  return module.empty() ? leaf : module + "." + leaf;
}

ModelNode node_of(const std::string& name, const torch::nn::Module& module) {
  ModelNode node{
      .name = name,
      .class_name = module.name(),
      .is_layer_list = dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
                       dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr,
      .module = &module};
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    node.parameters.push_back({dotted(name, item.key()), item.value()});
  }
  for (const auto& child : module.named_children()) {
    node.children.push_back(node_of(dotted(name, child.key()), *child.value()));
  }
  return node;
}

bool ends_with_list_class(const std::string& class_name) {
  return class_name.ends_with(".ModuleList") || class_name.ends_with(".Sequential");
}

ModelNode node_of(const std::string& name, const torch::jit::Module& module) {
  ModelNode node{.name = name, .class_name = module.type()->name()->qualifiedName()};
  node.is_layer_list = ends_with_list_class(node.class_name);
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    node.parameters.push_back({dotted(name, item.name), item.value});
  }
  for (const auto& child : module.named_children()) {
    node.children.push_back(node_of(dotted(name, child.name), child.value));
  }
  return node;
}

bool is_last_part(std::string_view name, std::string_view qualified) {
  if (!qualified.ends_with(name)) return false;
  if (qualified.size() == name.size()) return true;
  const char before = qualified[qualified.size() - name.size() - 1];
  return before == '.' || before == ':';
}

}  // namespace

std::int64_t ModelNode::elements() const {
  std::int64_t sum = 0;
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.defined()) sum += parameter.tensor.numel();
  }
  for (const ModelNode& child : children) sum += child.elements();
  return sum;
}

bool is_of_class(const ModelNode& node, std::string_view name) {
  if (is_last_part(name, node.class_name)) return true;
  return node.module != nullptr && is_last_part(name, c10::demangle(typeid(*node.module).name()));
}

ModelTree tree_of(const std::shared_ptr<torch::nn::Module>& module) {
  return {.root = node_of("", *module), .module = module, .buffers = [module] {
            std::vector<NamedTensor> buffers;
            for (const auto& item : module->named_buffers()) {
              if (item.value().defined()) buffers.push_back({item.key(), item.value()});
            }
            return buffers;
          }};
}

ModelTree tree_of(const torch::jit::Module& module) {
  return {.root = node_of("", module), .module = nullptr, .buffers = [module] {
            std::vector<NamedTensor> buffers;
            for (const auto& item : module.named_buffers())
              buffers.push_back({item.name, item.value});
            return buffers;
          }};
}

void for_each_node(const ModelNode& node, const std::function<void(const ModelNode&)>& visit) {
  visit(node);
  for (const ModelNode& child : node.children) for_each_node(child, visit);
}

}  // namespace fullshard::shard
