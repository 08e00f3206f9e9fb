#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "fullshard/comm/group.h"
#include "shard/flat_unit.h"
#include "shard/gradient_arena.h"

namespace fullshard::shard {

/// Where whole gradients wait for their reduction: memory that all ranks of a group on one host
/// read, one row a rank, which only that rank writes. Most gradients are made in it by autograd
/// itself (see make_gradients_in), so that nothing has to be copied; others are copied into it.
///
/// What it hands out may be returned in any thread, and after everybody else has let go of this
/// object.
class GradientMemory : public std::enable_shared_from_this<GradientMemory> {
 public:
  /// Collective. Pages that are not used cost nothing.
  static std::shared_ptr<GradientMemory> make(comm::Group& group,
                                              const std::vector<FlatUnit>& units);

  GradientMemory(const GradientMemory&) = delete;
  GradientMemory& operator=(const GradientMemory&) = delete;
  ~GradientMemory();

  /// Memory for a tensor that may become a gradient; null unless `bytes` is the size of the
  /// gradient of a trainable parameter and there is room.
  c10::DataPtr try_make(std::size_t bytes);

  /// An uninitialised row-major tensor for a copy of a gradient. There is room for one a parameter.
  at::Tensor make_copy(at::ScalarType dtype, at::IntArrayRef shape);

  /// Bytes from the start of this rank's row, or -1 when `address` is not in it.
  std::int64_t offset_of(const void* address) const;

  /// The same place of a rank's row, in this rank's address space.
  const std::byte* at(int rank, std::int64_t offset) const {
    return segment_->data() + rank * row_ + offset;
  }

 private:
  struct Block;
  GradientMemory(comm::Group& group, const std::vector<FlatUnit>& units);
  c10::DataPtr take(GradientArena& arena, std::int64_t base, std::int64_t bytes);
  static void give_back(void* block);

  std::vector<std::size_t> sizes_;  // of gradients, ascending
  std::int64_t half_ = 0;           // bytes of a row for what is made in place; then copies
  std::int64_t row_ = 0;
  int rank_ = 0;
  std::unique_ptr<comm::SharedSegment> segment_;

  std::mutex mutex_;  // guards what follows
  GradientArena made_{0};
  GradientArena copies_{0};
  std::vector<Block*> spare_;
};

/// From now on, tensors of a gradient's size that this thread makes during backward passes are
/// placed in `memory`, as long as that lives. The memory named last counts.
void make_gradients_in(const std::shared_ptr<GradientMemory>& memory);

/// While it lives, this thread's tensors lie in ordinary memory, whatever their size.
class OrdinaryMemory {
 public:
  OrdinaryMemory();
  ~OrdinaryMemory();
  OrdinaryMemory(const OrdinaryMemory&) = delete;
  OrdinaryMemory& operator=(const OrdinaryMemory&) = delete;

 private:
  std::weak_ptr<GradientMemory> suspended_;
};

}  // namespace fullshard::shard
