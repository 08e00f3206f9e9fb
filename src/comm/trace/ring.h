#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "comm/shared/operation.h"
#include "fullshard/comm/flight_record.h"

namespace fullshard::comm::trace {

/// What the ring keeps of an operation's beginning. Groups and boards are numbers that the Recorder
/// gave them.
struct Note {
  FlightKind kind = FlightKind::kCollective;
  base::DType dtype = base::DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  bool has_elements = false;  ///< whether `dtype` means something
  bool reduces = false;       ///< whether `op` does
  std::uint32_t group = 0;
  std::uint32_t board = 0;
  std::uint32_t counter = 0;
  std::int32_t root = -1;
  std::uint64_t sequence = 0;  ///< of a collective; the value of a post or a wait
  std::uint64_t counts_hash = 0;
  std::int64_t count = 0;
  std::int64_t step = -1;
  std::int64_t began_ns = 0;  ///< base::Clock
  shared::FixedText<32> operation;
  shared::FixedText<64> unit;
};

/// The last operations of a rank. Writers and readers are any threads, at any time, and nobody
/// waits: a writer that was suspended in the middle of an entry while the ring went once around
/// costs the entry that would take its place. Well under a microsecond an operation.
class Ring {
 public:
  static constexpr std::uint64_t kCapacity = 1024;

  /// Names an entry; 0 is one that was not recorded.
  using Ticket = std::uint64_t;

  struct Entry {
    Note note;
    FlightState state = FlightState::kStarted;
    std::int64_t ended_ns = 0;
  };

  Ring();

  /// Records an operation that begins; with another state than kStarted, one that ends at once.
  Ticket begin(const Note& note, FlightState state = FlightState::kStarted) noexcept;

  /// Records how it ended, if it is in the ring still. Only the first call counts.
  void end(Ticket ticket, FlightState state, std::int64_t ended_ns) noexcept;

  /// Operations recorded so far.
  std::uint64_t recorded() const { return last_.load(std::memory_order_acquire); }

  /// What is there, the oldest first.
  std::vector<Entry> read() const;

 private:
  static_assert(std::is_trivially_copyable_v<Note>);
  static constexpr std::size_t kWords = (sizeof(Note) + 7) / 8;

  // A sequence lock, as shared::Published, that also tells whose entry it holds: `version` is 2n-1
  // while entry n is being written and 2n when it is there.
  struct Slot {
    std::atomic<std::uint64_t> version = 0;
    std::atomic<std::uint64_t> outcome = 0;  // 4n + FlightState
    std::atomic<std::int64_t> ended_ns = 0;
    std::array<std::atomic<std::uint64_t>, kWords> words{};
  };

  bool read(Ticket ticket, Entry& entry) const;

  std::atomic<Ticket> last_ = 0;
  std::unique_ptr<std::array<Slot, kCapacity>> slots_;
};

}  // namespace fullshard::comm::trace
