#pragma once

#include "shard/engine.h"

namespace fullshard::shard {

/// Collective. p-norm over the gradients of all ranks; see ShardedModule::grad_norm.
double global_grad_norm(Engine& engine, double norm_type);

/// Multiplies every gradient shard of this rank by `factor`.
void scale_gradients(Engine& engine, double factor);

}  // namespace fullshard::shard
