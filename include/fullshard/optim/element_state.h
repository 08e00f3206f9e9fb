#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

#include "fullshard/optim/adamw.h"
#include "fullshard/state/element_state.h"

namespace fullshard::optim {

/// The state of an optimizer over a model's shards, for ShardedModule::move_shards: of SGD, Adam,
/// AdamW, RMSprop and Adagrad of libtorch; moving that of others throws base::Error(kMisuse) before
/// anything has changed. The optimizer must outlive it.
std::unique_ptr<state::ElementState> element_state(torch::optim::Optimizer& optimizer);

std::unique_ptr<state::ElementState> element_state(AdamW& optimizer);

}  // namespace fullshard::optim
