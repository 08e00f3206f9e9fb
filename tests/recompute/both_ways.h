#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <utility>
#include <vector>

#include "fullshard/recompute/checkpoint.h"

namespace fullshard::recompute::testing {

using Body = std::function<Tensors(const Tensors&)>;

/// Runs a region: plainly or checkpointed.
using Runner = std::function<Tensors(const Body&, const Tensors&)>;

inline Tensors plainly(const Body& body, const Tensors& inputs) { return body(inputs); }

inline Tensors checkpointed(const Body& body, const Tensors& inputs) {
  return checkpoint_tensors(body, inputs);
}

/// A region of one input and one output.
inline at::Tensor run_one(const Runner& run,
                          const std::function<at::Tensor(const at::Tensor&)>& body,
                          const at::Tensor& input) {
  return run([body](const Tensors& inputs) { return Tensors{body(inputs[0])}; }, {input}).at(0);
}

/// Gradients by `leaves` after `program`, which makes backward passes; both ways the same ones.
inline void expect_same_gradients(const Tensors& leaves,
                                  const std::function<void(const Runner&)>& program) {
  const auto gradients_of = [&](const Runner& run) {
    for (const at::Tensor& leaf : leaves) leaf.mutable_grad() = at::Tensor();
    torch::manual_seed(3);
    program(run);
    Tensors gradients;
    for (const at::Tensor& leaf : leaves) gradients.push_back(leaf.grad());
    return gradients;
  };
  const Tensors expected = gradients_of(plainly);
  const Tensors actual = gradients_of(checkpointed);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << "leaf " << i;
    if (!expected[i].defined()) continue;
    EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-12, 1e-12)) << "leaf " << i;
  }
}

inline at::Tensor random(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble).requires_grad_();
}

}  // namespace fullshard::recompute::testing
