#include "residency/embedding.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_backward.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "residency/paging_key.h"

namespace fullshard::residency {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The arguments of aten::embedding.
struct Call {
  at::Tensor table;
  at::Tensor indices;
  std::int64_t padding_index;
  bool scale_by_frequency;
  bool sparse;
};

class SparseEmbedding : public torch::autograd::Function<SparseEmbedding> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& table,
                            const at::Tensor& indices, std::int64_t padding_index) {
    context->save_for_backward({indices});
    context->saved_data["table"] = table;
    context->saved_data["padding_index"] = padding_index;
    const c10::impl::ExcludeDispatchKeyGuard guard{c10::DispatchKeySet(kPagingKey)};
    return at::embedding(table, indices, padding_index);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor table = context->saved_data["table"].toTensor();
    const at::Tensor gradient = at::embedding_backward(
        gradients[0], context->get_saved_variables()[0], table.size(0),
        context->saved_data["padding_index"].toInt(), /*scale_grad_by_freq=*/false,
        /*sparse=*/!is_observed(table));
    return {gradient, {}, {}};
  }

 private:
  // Whether anything but the accumulation into .grad will see the table's gradient.
  static bool is_observed(const at::Tensor& table) {
    const auto* inputs = torch::autograd::get_current_graph_task_exec_info();
    const bool some_inputs_only = inputs != nullptr && !inputs->empty();
    return at::GradMode::is_enabled() || some_inputs_only || has_hooks(table);
  }

  static bool has_hooks(const at::Tensor& table) {
    if (!torch::autograd::impl::hooks(table).empty()) return true;
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(table);
    return accumulator != nullptr &&
           (!accumulator->pre_hooks().empty() || !accumulator->tensor_pre_hooks().empty() ||
            !accumulator->post_hooks().empty());
  }
};

Call read(std::size_t arguments, const std::vector<c10::IValue>& stack) {
  const c10::IValue* first = &stack[stack.size() - arguments];
  return {first[0].toTensor(), first[1].toTensor(), first[2].toInt(), first[3].toBool(),
          first[4].toBool()};
}

// A view of a parameter has a gradient function of its own, which may know only dense gradients.
bool pays(const Call& call) {
  return at::GradMode::is_enabled() && call.table.requires_grad() && call.table.is_leaf() &&
         !call.sparse && !call.scale_by_frequency && 2 * call.indices.numel() < call.table.size(0);
}

}  // namespace

bool embed_with_sparse_gradient(std::size_t arguments, std::vector<c10::IValue>& stack,
                                const std::function<void()>& make_present) {
  const Call call = read(arguments, stack);
  if (!pays(call)) return false;
  make_present();
  at::Tensor result = SparseEmbedding::apply(call.table, call.indices, call.padding_index);
  stack.resize(stack.size() - arguments + 1);
  stack.back() = std::move(result);
  return true;
}

}  // namespace fullshard::residency
