#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "fullshard/comm/group.h"
#include "shard/arena.h"
#include "shard/flat_unit.h"

namespace fullshard::shard {

/// Where a rank keeps what one step makes: activations and gradients. The memory can be read by all
/// ranks of a group on one host, so that gradients are reduced from where autograd made them, and
/// its pages are used again step after step, first for activations, then for gradients, where the
/// general allocator would give large ones back to the system and have them zeroed again.
///
/// One row a rank, which only that rank writes, but for what it offers the others
/// (ReductionClaims). What is handed out may be returned in any thread, and after everybody else
/// has let go of this object.
class StepMemory : public std::enable_shared_from_this<StepMemory> {
 public:
  /// Collective. Pages that are not used cost nothing.
  static std::shared_ptr<StepMemory> make(comm::Group& group, const std::vector<FlatUnit>& units);

  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;
  ~StepMemory();

  /// Memory for a tensor: a large one, or in backward any that may be a gradient because it has the
  /// size of one. Null for others, and when there is no room.
  c10::DataPtr try_make(std::size_t bytes, bool in_backward);
  /// The same whatever the size.
  c10::DataPtr try_make(std::size_t bytes) {
    return take(made_, 0, static_cast<std::int64_t>(bytes));
  }

  /// An uninitialised row-major tensor for a copy of a gradient. There is room for one a parameter.
  at::Tensor make_copy(at::ScalarType dtype, at::IntArrayRef shape);

  /// Bytes from the start of this rank's row, or -1 when `address` is not in it.
  std::int64_t offset_of(const void* address) const;

  /// The same place of a rank's row, in this rank's address space.
  std::byte* at(int rank, std::int64_t offset) const {
    return segment_->data() + rank * row_ + offset;
  }

  /// Returns what any StepMemory of this process has handed out; false for other memory.
  static bool try_return(void* data);

  /// Ends a step: gives pages back to the system that the last two steps have not needed.
  void trim();

 private:
  StepMemory(comm::Group& group, const std::vector<FlatUnit>& units);
  bool is_gradient_size(std::size_t bytes) const;
  c10::DataPtr take(Arena& arena, std::int64_t base, std::int64_t bytes);
  void give_back(const std::byte* data);

  std::vector<std::size_t> sizes_;  // of gradients, ascending
  std::int64_t made_bytes_ = 0;     // of a row for what is made in place; copies follow
  std::int64_t row_ = 0;
  int rank_ = 0;
  std::unique_ptr<comm::SharedSegment> segment_;

  std::mutex mutex_;  // guards what follows
  Arena made_{0};
  Arena copies_{0};
  std::int64_t last_high_water_ = 0;
  std::int64_t touched_ = 0;          // pages above have never been used, or were given back
  std::int64_t taken_ = 0;            // what was handed out and is not returned
  std::shared_ptr<StepMemory> self_;  // while there is any
};

/// From now on, large tensors and gradients that this thread makes are placed in `memory`, as long
/// as that lives. The memory named last counts; null for none.
void make_tensors_in(const std::shared_ptr<StepMemory>& memory);

}  // namespace fullshard::shard
