#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "fullshard/comm/mesh.h"
#include "fullshard/comm/work.h"

namespace fullshard::shard {

/// The gradients of one unit on their way from this rank to all. The tensors are one-dimensional
/// and of one dtype, in the order of the unit's flat buffer; they live until the hook's Work is
/// done.
struct UnitGradients {
  const std::string& unit;  ///< its name, for tags
  std::int64_t round = 0;   ///< counts synchronising backward passes, from 1; for tags
  at::Tensor whole;         ///< this rank's gradients; the hook may change them
  /// To be filled with what this rank owns of the mean over all ranks of the mesh. The same memory
  /// as `whole` where a unit is not sharded.
  at::Tensor part;
  /// Elements of `whole` that each rank of the shard group owns, one part after the other. Empty
  /// where a unit is not sharded.
  std::span<const std::int64_t> counts;
  const comm::Mesh& mesh;
};

/// Averages the gradients of a unit over all ranks of the mesh; this is the place for compression.
/// Called in backward, when the unit's gradients are complete, by the thread of the rank; on all
/// ranks for the same units in the same order. The Work that it returns is waited for at the end of
/// backward at the latest. What it throws fails the backward pass; ranks that wait for this one
/// then get the group's error.
using CommunicationHook = std::function<comm::Work(const UnitGradients&)>;

/// Averages in the given type, for instance at::kBFloat16, which halves the bytes of fp32 gradients
/// and keeps as many digits as that type has.
CommunicationHook compress_gradients_to(at::ScalarType dtype);

}  // namespace fullshard::shard
