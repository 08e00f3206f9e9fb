#pragma once

#include <torch/optim/optimizer.h>

#include <optional>
#include <vector>

namespace fullshard::optim {

constexpr std::size_t kElementTensors = 3;

/// The tensors of one number an element that an optimizer of libtorch keeps for a parameter, filled
/// up with null to kElementTensors; some may be undefined. Nothing for an optimizer that is not
/// known.
std::optional<std::vector<at::Tensor*>> element_tensors(torch::optim::OptimizerParamState& state);

}  // namespace fullshard::optim
