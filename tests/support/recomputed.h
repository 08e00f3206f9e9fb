#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>

namespace fullshard::testing {

using Body = std::function<at::Tensor(const at::Tensor&)>;

/// Activation checkpointing: forward keeps only the input of `body`, which must outlive the graph;
/// backward computes it again and runs a backward pass inside the one that called it.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const Body* body) {
    context->save_for_backward({x});
    context->saved_data["body"] = reinterpret_cast<std::int64_t>(body);
    return (*body)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::AutoGradMode record(true);
    const auto* body = reinterpret_cast<const Body*>(context->saved_data["body"].toInt());
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    (*body)(x).backward(gradients[0]);
    return {x.grad(), {}};
  }
};

}  // namespace fullshard::testing
