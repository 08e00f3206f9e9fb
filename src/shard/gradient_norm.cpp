#include "shard/gradient_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "fullshard/base/error.h"

namespace fullshard::shard {
namespace {

std::vector<at::Tensor> gradients(const Engine& engine) {
  std::vector<at::Tensor> out;
  for (const state::ShardedTensor& shard : engine.shards()) {
    const at::Tensor& gradient = shard.tensor.grad();
    if (gradient.defined() && gradient.numel() > 0) out.push_back(gradient);
  }
  return out;
}

void check_norm_type(double p) {
  if (p >= 1) return;  // false for NaN too
  throw base::Error(base::ErrorCode::kInvalidArgument,
                    fmt::format("norm_type is {}; a norm needs at least 1, or infinity", p));
}

}  // namespace

double global_grad_norm(Engine& engine, double norm_type) {
  check_norm_type(norm_type);
  const at::NoGradGuard no_grad;
  const bool infinite = std::isinf(norm_type);
  double local = 0;  // the largest element, or the sum of p-th powers
  for (const at::Tensor& gradient : gradients(engine)) {
    const double norm = at::linalg_vector_norm(gradient, norm_type).item<double>();
    // std::max would drop a NaN.
    if (infinite)
      local = std::isnan(norm) ? norm : std::max(local, norm);
    else
      local += std::pow(norm, norm_type);
  }
  if (!engine.replicated()) {
    engine.group()
        .all_reduce({&local, 1, base::DType::kFloat64},
                    infinite ? comm::ReduceOp::kMax : comm::ReduceOp::kSum,
                    {"gradient norm", engine.version()})
        .wait();
  }
  return infinite ? local : std::pow(local, 1 / norm_type);
}

void scale_gradients(Engine& engine, double factor) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> all = gradients(engine);
  if (!all.empty()) at::_foreach_mul_(all, factor);
}

}  // namespace fullshard::shard
