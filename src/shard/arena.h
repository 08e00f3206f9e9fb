#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fullshard::shard {

/// Hands out regions of some memory, lowest free address first, so that the pages touched stay few
/// while users take turns. Only arithmetic; the memory is somebody else's.
class Arena {
 public:
  /// `usual` regions can be in use at once without an allocation here.
  explicit Arena(std::int64_t capacity, std::size_t usual = 0) : capacity_(capacity) {
    regions_.reserve(usual);
  }

  /// Offset of `bytes` free bytes, a multiple of 64, or -1 when no gap is large enough.
  std::int64_t allocate(std::int64_t bytes);

  /// Returns a region given by allocate.
  void free(std::int64_t offset);

  std::int64_t used() const { return used_; }

  /// End of the highest region that was in use since the last call.
  std::int64_t take_high_water();

 private:
  struct Region {
    std::int64_t begin;
    std::int64_t bytes;
    std::int64_t end() const { return begin + bytes; }
  };

  std::int64_t capacity_;
  std::int64_t used_ = 0;
  std::int64_t high_water_ = 0;
  std::vector<Region> regions_;  // in use, by address
};

}  // namespace fullshard::shard
