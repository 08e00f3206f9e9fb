#include "recompute/region.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "fullshard/base/error.h"

namespace fullshard::recompute {

void reject(std::string_view problem) {
  throw base::Error(base::ErrorCode::kMisuse, fmt::format("activation checkpointing: {}", problem));
}

std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_inference() ? tensor._version() : 0;
}

Region::Region(std::function<Tensors(const Tensors&)> run, Tensors inputs,
               const CheckpointOptions& options)
    : run_(std::move(run)), inputs_(std::move(inputs)) {
  std::transform(inputs_.begin(), inputs_.end(), std::back_inserter(versions_), version_of);
  if (options.preserve_rng_state) random_.emplace(inputs_);
}

Tensors Region::run_first() const {
  Tensors outputs = run(nullptr);
  require_unchanged();
  return outputs;
}

Tensors Region::run_again() const {
  require_unchanged();
  return run(random_ ? &*random_ : nullptr);
}

Tensors Region::run(const RandomState* random) const {
  const RandomScope draws(random);
  const AutocastScope casts(autocast_);
  const at::AutoGradMode with_gradients(true);
  return run_(inputs_);
}

void Region::require_unchanged() const {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (version_of(inputs_[i]) == versions_[i]) continue;
    reject(
        fmt::format("input {} of a region was changed in place, by the region or before its "
                    "backward, which has to run the region again; give the region a copy",
                    i));
  }
}

}  // namespace fullshard::recompute
