#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "fullshard/base/error.h"

// Comparing a model with the original in Python: both are filled by a formula over the parameters'
// names, so that equal values also mean equal names and shapes. The Python side, in torch 2.11.0 in
// double precision:
//
//   for name, p in model.named_parameters():
//       k = sum(map(ord, name)) % 97
//       one = 1 if p.dim() == 1 and name.endswith("weight") else 0
//       p.copy_((torch.arange(p.numel()).double() * 0.37 + k).sin().view(p.shape) * 0.3 + one)

namespace fullshard::models::testing {

inline void fill_by_name(torch::nn::Module& model) {
  model.to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  for (const auto& item : model.named_parameters()) {
    const std::string& name = item.key();
    const int start = std::accumulate(name.begin(), name.end(), 0) % 97;
    const at::Tensor& value = item.value();
    const bool norm = value.dim() == 1 && name.ends_with("weight");
    value.copy_(
        (torch::arange(value.numel(), torch::kDouble) * 0.37 + start).sin().view(value.sizes()) *
            0.3 +
        (norm ? 1 : 0));
  }
}

/// [count, 3, side, side]
inline at::Tensor images(std::int64_t count, std::int64_t side) {
  return (torch::arange(count * 3 * side * side, torch::kDouble) * 0.11)
      .cos()
      .view({count, 3, side, side});
}

/// What the original printed: the second logit, the loss, and the norm of its gradient.
struct Original {
  std::size_t parameters;
  double logit;
  double loss;
  double grad_norm;
};

inline void expect_original(torch::nn::Module& model, const at::Tensor& logits,
                            const at::Tensor& loss, const Original& original) {
  constexpr double kRelative = 1e-9;
  EXPECT_EQ(model.named_parameters().size(), original.parameters);
  EXPECT_NEAR(logits.flatten()[1].item<double>() / original.logit, 1, kRelative);
  EXPECT_NEAR(loss.item<double>() / original.loss, 1, kRelative);
  loss.backward();
  std::vector<at::Tensor> norms;
  for (const at::Tensor& parameter : model.parameters()) norms.push_back(parameter.grad().norm());
  EXPECT_NEAR(torch::stack(norms).norm().item<double>() / original.grad_norm, 1, kRelative);
}

inline std::int64_t count(const torch::nn::Module& model) {
  std::int64_t total = 0;
  for (const at::Tensor& parameter : model.parameters()) total += parameter.numel();
  return total;
}

inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

/// Values that are normal with this deviation, as far as many of them can tell.
inline void expect_normal(const at::Tensor& values, double std) {
  EXPECT_NEAR(values.std().item<double>() / std, 1, 0.05);
  EXPECT_NEAR(values.mean().item<double>() / std, 0, 0.05);
}

}  // namespace fullshard::models::testing
