#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "fullshard/state/sharded_tensor.h"

namespace fullshard::state {

/// What somebody, usually an optimizer, keeps for each element of this rank's shards. Where ranks
/// come to own other elements, it moves with them.
class ElementState {
 public:
  virtual ~ElementState() = default;

  /// What it keeps, for people.
  virtual std::string name() const = 0;

  /// For each of the model's shards, in their order, tensors of one number an element of the shard:
  /// equally many for every shard and on every rank, undefined ones where there is nothing yet.
  virtual std::vector<std::vector<at::Tensor>> tensors(std::span<const ShardedTensor> shards) = 0;

  /// The shards have become these, with these tensors; where there was nothing there is nothing.
  virtual void replace(std::span<const ShardedTensor> shards,
                       std::vector<std::vector<at::Tensor>> tensors) = 0;
};

}  // namespace fullshard::state
