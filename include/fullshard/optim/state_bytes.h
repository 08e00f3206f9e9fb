#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>

#include "fullshard/optim/adamw.h"

namespace fullshard::optim {

/// Bytes of the tensors that an optimizer of libtorch keeps for its parameters now, on this rank:
/// of SGD, Adam, AdamW, RMSprop and Adagrad; of others 0.
std::int64_t state_bytes(const torch::optim::Optimizer& optimizer);

std::int64_t state_bytes(const AdamW& optimizer);

}  // namespace fullshard::optim
