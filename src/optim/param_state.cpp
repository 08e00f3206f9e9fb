#include "optim/param_state.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace fullshard::optim {

namespace {

using torch::optim::OptimizerParamState;

// Adam's and AdamW's.
template <typename State>
std::vector<at::Tensor*> moments_of(State& state) {
  return {&state.exp_avg(), &state.exp_avg_sq(), &state.max_exp_avg_sq()};
}

std::vector<at::Tensor*> tensors_of(OptimizerParamState& state) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): only names of states
  if (auto* adamw = dynamic_cast<AdamWParamState*>(&state)) return moments_of(*adamw);
  if (auto* adam = dynamic_cast<AdamParamState*>(&state)) return moments_of(*adam);
  if (auto* sgd = dynamic_cast<SGDParamState*>(&state)) return {&sgd->momentum_buffer()};
  if (auto* rms = dynamic_cast<RMSpropParamState*>(&state)) {
    return {&rms->square_avg(), &rms->momentum_buffer(), &rms->grad_avg()};
  }
  if (auto* adagrad = dynamic_cast<AdagradParamState*>(&state)) return {&adagrad->sum()};
  return {};
}

}  // namespace

std::optional<std::vector<at::Tensor*>> element_tensors(OptimizerParamState& state) {
  std::vector<at::Tensor*> tensors = tensors_of(state);
  if (tensors.empty()) return std::nullopt;
  tensors.resize(kElementTensors, nullptr);
  return tensors;
}

}  // namespace fullshard::optim
