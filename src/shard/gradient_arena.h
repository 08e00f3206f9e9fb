#pragma once

#include <cstdint>
#include <map>

namespace fullshard::shard {

/// Hands out regions of one rank's gradient memory, lowest free address first, so that the pages
/// touched stay few while units take turns. Only arithmetic; the memory is somebody else's.
class GradientArena {
 public:
  explicit GradientArena(std::int64_t capacity) : capacity_(capacity) {}

  /// Offset of `bytes` free bytes, a multiple of 64, or -1 when no gap is large enough.
  std::int64_t allocate(std::int64_t bytes);

  /// Returns a region given by allocate.
  void free(std::int64_t offset);

  std::int64_t used() const { return used_; }
  std::int64_t peak() const { return peak_; }
  void reset_peak() { peak_ = used_; }

 private:
  std::int64_t capacity_;
  std::int64_t used_ = 0;
  std::int64_t peak_ = 0;
  std::map<std::int64_t, std::int64_t> regions_;  // offset -> bytes, by address
};

}  // namespace fullshard::shard
