#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "shard/flat_unit.h"

namespace fullshard::shard {

/// The reduced gradient of what this rank owns of a unit: one run of memory, and a tensor for each
/// parameter that shows its part. Tensors stay the same objects while their memory comes and goes,
/// so that steps make none.
class OwnGradient {
 public:
  /// `unit` must outlive the object.
  explicit OwnGradient(const FlatUnit& unit);

  /// Where all of it lies; takes memory from libtorch's allocator when there is none.
  std::byte* memory();

  /// The same, from `make`, which is given the number of bytes and may return null.
  std::byte* memory_from(const std::function<c10::DataPtr(std::size_t)>& make);

  /// The part of one parameter, one-dimensional; valid as long as the memory is.
  const at::Tensor& part(std::size_t parameter);

  /// Whether the tensor shows this memory.
  bool holds(const at::Tensor& tensor) const;

  /// Gives the memory back unless `held`, that is, unless a part is still a shard's gradient. Where
  /// somebody else keeps a part it is left to him, and the next gradient lies elsewhere.
  void release_unless_held(bool held);

 private:
  void make();
  bool anyone_else_has() const;

  const FlatUnit& unit_;
  c10::Storage storage_;
  std::vector<at::Tensor> parts_;
  bool has_memory_ = false;
};

}  // namespace fullshard::shard
