#include "residency/operand_cast.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/to_native.h>

#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "fullshard/residency/paged_storage.h"

namespace fullshard::residency {
namespace {

// Operators that want their operands in one dtype, without "aten::".
bool wants_one_dtype(std::string_view name) {
  static const std::unordered_set<std::string_view> names{
      // products
      "linear", "matmul", "mm", "bmm", "mv", "dot", "inner", "addmm", "addmv", "addr", "addbmm",
      "baddbmm", "bilinear", "_trilinear", "einsum", "tensordot", "chain_matmul", "linalg_matmul",
      "linalg_multi_dot", "linalg_vecdot", "scaled_dot_product_attention",
      "_native_multi_head_attention", "_transformer_encoder_layer_fwd",
      // convolutions
      "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d",
      "conv_transpose3d", "convolution", "_convolution", "_convolution_mode", "thnn_conv2d",
      "slow_conv3d", "mkldnn_convolution",
      // recurrent layers
      "lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell",
      "rnn_relu_cell",
      // normalisations, and what has weights for its samples
      "layer_norm", "native_layer_norm", "group_norm", "native_group_norm", "rms_norm",
      "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only", "prelu"};
  constexpr std::string_view kNamespace = "aten::";
  return name.starts_with(kNamespace) && names.contains(name.substr(kNamespace.size()));
}

bool is_to_be(const at::Tensor& tensor, at::ScalarType wanted) {
  return tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != wanted &&
         paged_storage(tensor) == nullptr;
}

std::optional<at::ScalarType> dtype_among(const c10::IValue& value) {
  const auto dtype_of = [](const at::Tensor& tensor) -> std::optional<at::ScalarType> {
    if (!tensor.defined() || paged_storage(tensor) == nullptr) return std::nullopt;
    return tensor.is_floating_point() ? std::optional(tensor.scalar_type()) : std::nullopt;
  };
  if (value.isTensor()) return dtype_of(value.toTensor());
  if (!value.isTensorList()) return std::nullopt;
  for (const at::Tensor& tensor : value.toTensorVector()) {
    if (const auto dtype = dtype_of(tensor)) return dtype;
  }
  return std::nullopt;
}

void cast(c10::IValue& value, at::ScalarType wanted) {
  if (value.isTensor()) {
    if (is_to_be(value.toTensor(), wanted)) value = value.toTensor().to(wanted);
  } else if (value.isTensorList()) {
    std::vector<at::Tensor> tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors) {
      if (is_to_be(tensor, wanted)) tensor = tensor.to(wanted);
    }
    value = std::move(tensors);
  }
}

}  // namespace

void cast_operands(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  if (!wants_one_dtype(schema.name())) return;
  const auto& arguments = schema.arguments();
  const std::size_t first = stack.size() - arguments.size();
  std::optional<at::ScalarType> wanted;
  for (std::size_t i = 0; i < arguments.size() && !wanted; ++i) {
    wanted = dtype_among(stack[first + i]);
  }
  if (!wanted) return;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) cast(stack[first + i], *wanted);
  }
}

}  // namespace fullshard::residency
