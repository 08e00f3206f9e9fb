#include "fullshard/state/sharded_tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <unordered_set>

#include "fullshard/base/error.h"
#include "fullshard/state/validate.h"

namespace fullshard::state {
namespace {

[[noreturn]] void reject(const ShardedTensor& tensor, const std::string& problem) {
  throw base::Error(base::ErrorCode::kInvalidArgument,
                    fmt::format("sharded tensor \"{}\" of shape [{}]: {}", tensor.name,
                                fmt::join(tensor.global_shape, ", "), problem));
}

void validate_dimension(const ShardedTensor& tensor) {
  const auto dimensions = static_cast<std::int64_t>(tensor.global_shape.size());
  if (tensor.dimension == 0 || (tensor.dimension > 0 && tensor.dimension < dimensions)) return;
  reject(tensor,
         fmt::format("it is cut along dimension {}; it has {}", tensor.dimension, dimensions));
}

void validate_range(const ShardedTensor& tensor) {
  for (const std::int64_t size : tensor.global_shape) {
    if (size < 0) reject(tensor, fmt::format("size {} is negative", size));
  }
  const std::int64_t whole = global_numel(tensor);
  if (tensor.begin < 0 || tensor.begin > tensor.end || tensor.end > whole) {
    reject(tensor, fmt::format("the range [{}, {}) does not lie inside its {} elements",
                               tensor.begin, tensor.end, whole));
  }
  if (tensor.replicated && local_numel(tensor) != whole) {
    reject(tensor, fmt::format("it is replicated, so this rank must hold all {} elements, not {}",
                               whole, local_numel(tensor)));
  }
}

}  // namespace

std::int64_t global_numel(const ShardedTensor& tensor) {
  std::int64_t numel = 1;
  for (const std::int64_t size : tensor.global_shape) numel *= size;
  return numel;
}

std::int64_t local_numel(const ShardedTensor& tensor) { return tensor.end - tensor.begin; }

at::Tensor in_storage_order(const at::Tensor& whole, std::int64_t dimension) {
  if (dimension == 0) return whole.reshape({-1});
  return whole.movedim(dimension, 0).reshape({-1});
}

at::Tensor part_of(const ShardedTensor& tensor, const at::Tensor& whole) {
  return in_storage_order(whole, tensor.dimension).narrow(0, tensor.begin, local_numel(tensor));
}

void validate(const ShardedTensor& tensor) {
  if (tensor.name.empty()) reject(tensor, "it has no name");
  validate_dimension(tensor);
  validate_range(tensor);
  if (!tensor.tensor.defined()) reject(tensor, "its tensor is undefined");
  if (tensor.tensor.dim() != 1 || tensor.tensor.numel() != local_numel(tensor)) {
    reject(tensor, fmt::format("its tensor must be one-dimensional with {} elements, not [{}]",
                               local_numel(tensor), fmt::join(tensor.tensor.sizes(), ", ")));
  }
}

void validate(std::span<const ShardedTensor> tensors) {
  std::unordered_set<std::string_view> names;
  for (const ShardedTensor& tensor : tensors) {
    validate(tensor);
    if (!names.insert(tensor.name).second) reject(tensor, "another tensor has the same name");
  }
}

}  // namespace fullshard::state
