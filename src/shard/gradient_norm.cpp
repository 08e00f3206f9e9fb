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

std::vector<at::Tensor> gradients(const Engine& engine, bool replicated) {
  std::vector<at::Tensor> out;
  for (const state::ShardedTensor& shard : engine.shards()) {
    const at::Tensor& gradient = shard.tensor.grad();
    if (shard.replicated != replicated || !gradient.defined()) continue;
    if (gradient.numel() > 0) out.push_back(gradient);
  }
  return out;
}

// The operator adds up in the tensor's own precision: of ten million squares in fp32 it loses four
// digits, of so many elements next to nothing.
constexpr std::int64_t kPiece = 1 << 16;

// The largest element, or the sum of p-th powers.
double partial_norm(const std::vector<at::Tensor>& tensors, double p) {
  double sum = 0;
  for (const at::Tensor& tensor : tensors) {
    for (std::int64_t begin = 0; begin < tensor.numel(); begin += kPiece) {
      const at::Tensor piece = tensor.slice(0, begin, begin + kPiece);
      const double norm = at::linalg_vector_norm(piece, p).item<double>();
      if (!std::isinf(p)) {
        sum += std::pow(norm, p);
      } else {
        sum = std::isnan(norm) ? norm : std::max(sum, norm);  // std::max would drop a NaN
      }
    }
  }
  return sum;
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
  engine.take_part();
  const bool infinite = std::isinf(norm_type);
  double sharded = partial_norm(gradients(engine, /*replicated=*/false), norm_type);
  // Where replicas divide updates, gradients are divided over all ranks.
  const comm::Mesh& mesh = engine.mesh();
  comm::Group& group = engine.options().shard_optimizer_over_replicas ? *mesh.all : *mesh.shard;
  group
      .all_reduce({&sharded, 1, base::DType::kFloat64},
                  infinite ? comm::ReduceOp::kMax : comm::ReduceOp::kSum,
                  {"gradient norm", engine.version()})
      .wait();
  const double replicated = partial_norm(gradients(engine, /*replicated=*/true), norm_type);
  if (infinite) return std::isnan(replicated) ? replicated : std::max(sharded, replicated);
  return std::pow(sharded + replicated, 1 / norm_type);
}

void scale_gradients(Engine& engine, double factor) {
  const at::NoGradGuard no_grad;
  for (const bool replicated : {false, true}) {
    const std::vector<at::Tensor> some = gradients(engine, replicated);
    if (!some.empty()) at::_foreach_mul_(some, factor);
  }
}

}  // namespace fullshard::shard
