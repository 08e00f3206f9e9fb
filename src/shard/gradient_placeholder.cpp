#include "shard/gradient_placeholder.h"

#include <ATen/core/ivalue.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/graph_task.h>

#include "fullshard/base/error.h"

namespace fullshard::shard {

at::Tensor GradientPlaceholder::make(const std::string& name, const at::Tensor& parameter,
                                     int index) {
  auto storage = c10::make_intrusive<residency::PagedStorage>(name, 0, index);
  storage->attach(this);
  return residency::make_paged_tensor(storage, parameter.scalar_type(), parameter.sizes(),
                                      parameter.strides());
}

void GradientPlaceholder::on_access(residency::PagedStorage& storage, residency::Access,
                                    std::string_view op) {
  throw base::Error(
      base::ErrorCode::kMisuse,
      fmt::format(
          "{} uses the gradient of parameter '{}', which is sharded: after backward each rank "
          "holds its part, averaged over the ranks, in the .grad of sharded.parameters(). "
          "Build the optimizer on sharded.parameters(), clip with sharded.clip_grad_norm_(), "
          "clear with sharded.zero_grad()",
          op, storage.name()));
}

bool GradientPlaceholder::replace(residency::PagedStorage& storage, std::string_view op,
                                  std::size_t arguments, std::vector<c10::IValue>& stack) {
  const std::size_t first = stack.size() - arguments;
  if (op == "aten::detach" || op == "aten::detach_" || op == "aten::zero_") {
    // torch::nn::Module::zero_grad detaches, then drops or zeroes.
    if (op == "aten::zero_") zero_(storage.index());
    stack.resize(first + 1);
    return true;
  }
  // autograd::AccumulateGrad: in place, or out of place when the gradient has a graph of its own.
  const bool accumulates = op == "aten::add_" || op == "aten::add";
  if (!accumulates || torch::autograd::get_current_graph_task_id() == -1) return false;
  // Moved out of the stack, so that who takes it can tell whether anybody else refers to it.
  const at::Tensor gradient = std::move(stack[first + 1]).toTensor();
  take_(storage.index(), gradient);
  if (op == "aten::add") {
    taken_with_graph_ = storage.index();
    stack[first] = gradient;
  }
  stack.resize(first + 1);
  return true;
}

}  // namespace fullshard::shard
