#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace fullshard::comm::shared {

/// View of a table of counters in shared memory, one row a rank, `stride` bytes from row to row.
/// Rows of different ranks share no cache line when the stride is a multiple of 64.
class Counters {
 public:
  Counters(std::atomic<std::uint64_t>* first, std::size_t stride, int ranks)
      : first_(reinterpret_cast<std::byte*>(first)), stride_(stride), ranks_(ranks) {}

  std::atomic<std::uint64_t>& at(int rank, std::size_t index) const {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(first_ + static_cast<std::size_t>(rank) *
                                                                      stride_)[index];
  }

  int ranks() const { return ranks_; }

  /// Whether every rank's counter is at least `value`; acquires what those ranks released.
  bool reached(std::size_t index, std::uint64_t value) const {
    for (int rank = 0; rank < ranks_; ++rank) {
      // Sequentially consistent, not only acquire: Session's argument against lost wake-ups needs
      // it.
      if (at(rank, index).load(std::memory_order_seq_cst) < value) return false;
    }
    return true;
  }

  /// Smallest counter of the ranks other than `rank`.
  std::uint64_t least_of_others(int rank, std::size_t index) const {
    std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
    for (int other = 0; other < ranks_; ++other) {
      if (other != rank) least = std::min(least, at(other, index).load(std::memory_order_seq_cst));
    }
    return least;
  }

 private:
  std::byte* first_;
  std::size_t stride_;
  int ranks_;
};

}  // namespace fullshard::comm::shared
