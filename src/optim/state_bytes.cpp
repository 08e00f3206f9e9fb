#include "fullshard/optim/state_bytes.h"

#include "optim/param_state.h"

namespace fullshard::optim {

std::int64_t state_bytes(const torch::optim::Optimizer& optimizer) {
  std::int64_t bytes = 0;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto tensors = element_tensors(*state);
    if (!tensors) continue;
    for (const at::Tensor* tensor : *tensors) {
      if (tensor != nullptr && tensor->defined()) {
        bytes += static_cast<std::int64_t>(tensor->nbytes());
      }
    }
  }
  return bytes;
}

std::int64_t state_bytes(const AdamW& optimizer) { return optimizer.state_bytes(); }

}  // namespace fullshard::optim
