#pragma once

// Everything a training program needs, under the names of PyTorch's FSDP.

#include "fullshard/base/error.h"
#include "fullshard/comm/flight_signal.h"
#include "fullshard/comm/init.h"
#include "fullshard/comm/rank0_only.h"
#include "fullshard/comm/world.h"
#include "fullshard/data/distributed_sampler.h"
#include "fullshard/optim/adamw.h"
#include "fullshard/optim/state_bytes.h"
#include "fullshard/optim/warmup_cosine.h"
#include "fullshard/recompute/checkpoint.h"
#include "fullshard/shard/fully_shard.h"
#include "fullshard/shard/sync_batch_norm.h"

namespace fullshard {

using base::Error;
using base::ErrorCode;
using comm::CommOptions;
using comm::Mesh;
using comm::MeshOptions;
using comm::World;
using data::Cursor;
using data::DistributedSampler;
using data::DistributedSamplerOptions;
using data::Remainder;
using layout::Atom;
using recompute::checkpoint;
using recompute::checkpoint_tensors;
using recompute::CheckpointOptions;
using shard::automatic;
using shard::Counters;
using shard::fully_shard;
using shard::FullyShardedDataParallel;
using shard::FullyShardOptions;
using shard::LoadReport;
using shard::ParameterRule;
using shard::root_only;
using shard::rule_for;
using shard::ShardedModule;
using shard::ShardingStrategy;
using shard::size_based;
using shard::StateDict;
using shard::SyncBatchNorm;
using shard::transformer_blocks;
using shard::UnitChoice;
using shard::UnshardedMode;
using shard::UnshardedScope;
using shard::with_groups;
using shard::wrap_classes;
using shard::wrap_modules;
using shard::wrap_named;
using shard::wrap_where;
using shard::WrapPolicy;

}  // namespace fullshard
