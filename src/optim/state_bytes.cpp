#include "fullshard/optim/state_bytes.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <initializer_list>

namespace fullshard::optim {
namespace {

std::int64_t sum_of(std::initializer_list<at::Tensor> tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  return bytes;
}

std::int64_t bytes_of(const torch::optim::OptimizerParamState& state) {
  if (const auto* of = dynamic_cast<const torch::optim::AdamWParamState*>(&state)) {
    return sum_of({of->exp_avg(), of->exp_avg_sq(), of->max_exp_avg_sq()});
  }
  if (const auto* of = dynamic_cast<const torch::optim::AdamParamState*>(&state)) {
    return sum_of({of->exp_avg(), of->exp_avg_sq(), of->max_exp_avg_sq()});
  }
  if (const auto* of = dynamic_cast<const torch::optim::SGDParamState*>(&state)) {
    return sum_of({of->momentum_buffer()});
  }
  if (const auto* of = dynamic_cast<const torch::optim::RMSpropParamState*>(&state)) {
    return sum_of({of->square_avg(), of->momentum_buffer(), of->grad_avg()});
  }
  if (const auto* of = dynamic_cast<const torch::optim::AdagradParamState*>(&state)) {
    return sum_of({of->sum()});
  }
  return 0;
}

}  // namespace

std::int64_t state_bytes(const torch::optim::Optimizer& optimizer) {
  std::int64_t bytes = 0;
  for (const auto& [parameter, state] : optimizer.state()) bytes += bytes_of(*state);
  return bytes;
}

std::int64_t state_bytes(const AdamW& optimizer) { return optimizer.state_bytes(); }

}  // namespace fullshard::optim
