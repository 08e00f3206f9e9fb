#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shard/buffer_pool.h"
#include "shard/flat_unit.h"
#include "shard/gradient_flags.h"

namespace fullshard::shard {

/// A unit whose gradients are ready to meet those of other ranks.
struct CompleteUnit {
  std::size_t unit;
  GradientFlags any;     ///< which parameters have a gradient on any rank
  at::Tensor gradients;  ///< this rank's, or its part of those of its host
};

/// Units of one kind that are reduced in one collective.
using Bucket = std::vector<CompleteUnit>;

/// Puts units that are complete one after the other into buckets. What is in which depends on their
/// order only, so it is the same on all ranks that complete the same units in the same order.
class ReduceBuckets {
 public:
  /// Units of one bucket have at most `limit` bytes together. `start` is called with each.
  ReduceBuckets(const std::vector<FlatUnit>& units, std::int64_t limit,
                std::function<void(Bucket)> start);

  /// Starts the open bucket where the unit does not fit, and the unit's once it is full.
  void add(CompleteUnit complete);

  /// Starts the open bucket, if there is one.
  void flush();

 private:
  bool fits(std::size_t unit) const;

  const std::vector<FlatUnit>& units_;
  std::int64_t limit_;
  std::function<void(Bucket)> start_;
  Bucket open_;
  std::int64_t bytes_ = 0;  // of its units
};

/// What a collective about the units is called in errors.
std::string name_of(const std::vector<FlatUnit>& units, const Bucket& bucket);

/// Takes the gradients out of a bucket in the order in which they travel: those of one unit as they
/// are, those of several piece after piece, the units one after the other in each. `pieces_of` cuts
/// a unit's gradients; buffers come from `buffers` and go there.
at::Tensor pack(const std::vector<FlatUnit>& units, Bucket& bucket, BufferPool& buffers,
                const std::function<std::span<const layout::Range>(const FlatUnit&)>& pieces_of);

}  // namespace fullshard::shard
