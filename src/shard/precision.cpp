#include "shard/precision.h"

#include <algorithm>
#include <unordered_set>

namespace fullshard::shard {
namespace {

// The module that a parameter or buffer is in, by its dotted name.
std::string module_of(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

// Whether what has this name is in one of the modules, or in a module inside one.
bool is_in(const std::unordered_set<std::string>& modules, std::string name) {
  while (!name.empty()) {
    name = module_of(name);
    if (modules.contains(name)) return true;
  }
  return false;
}

}  // namespace

std::string text_of(const Precision& precision,
                    const std::function<std::string(at::ScalarType)>& name) {
  std::string text = name(precision.compute);
  if (precision.shard != precision.compute) text += ", shards " + name(precision.shard);
  if (precision.reduce != precision.compute) text += ", reduced in " + name(precision.reduce);
  return text;
}

bool keeps_precision_in(const ModelNode& node, const MixedPrecision& mixed) {
  return std::any_of(mixed.module_classes_to_ignore.begin(), mixed.module_classes_to_ignore.end(),
                     [&](const std::string& name) { return is_of_class(node, name); });
}

void convert_buffers(const ModelTree& model, const MixedPrecision& mixed) {
  if (!mixed.buffer_dtype) return;
  std::unordered_set<std::string> left;  // modules
  for_each_node(model.root, [&](const ModelNode& node) {
    if (keeps_precision_in(node, mixed)) left.insert(node.name);
  });
  for (const NamedTensor& buffer : model.buffers()) {
    if (!buffer.tensor.is_floating_point() || is_in(left, buffer.name)) continue;
    at::Tensor same = buffer.tensor;
    same.set_data(buffer.tensor.detach().to(*mixed.buffer_dtype));
  }
}

}  // namespace fullshard::shard
