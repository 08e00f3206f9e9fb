#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/shared/operation.h"
#include "comm/shared/published.h"
#include "fullshard/base/deadline.h"
#include "fullshard/base/error.h"

namespace fullshard::comm::shared {

// The memory that the ranks of one group share: a header, a slot for each rank, and a staging area
// for each rank. Everything is valid when all zero but for what format() writes. Ranks may map it
// at different addresses, so it holds no pointers.

/// Why a group can no longer be used. Written once, by the rank that takes `state` from 0 to 1;
/// readers may look once they have seen 2.
struct Failure {
  std::atomic<std::uint32_t> state;
  base::ErrorCode code;
  std::int32_t cause_rank;  ///< as in base::Error::rank
  std::int32_t reporter;    ///< the rank that wrote this
  std::array<char, 2048> message;
};

struct ControlHeader {
  std::uint64_t magic;
  std::uint64_t staging_bytes;  ///< of one half of one rank's staging area
  std::int64_t heartbeat_ns;    ///< CommOptions::heartbeat_timeout
  std::int32_t ranks;
  Failure failure;
  alignas(64) std::atomic<std::uint32_t> doorbell;  ///< changes whenever sleepers should look again
  alignas(64) std::atomic<std::uint32_t> sleepers;  ///< how many may be asleep on the doorbell
};

/// Whether a rank still takes part.
enum class Presence : std::uint32_t { kNotYet = 0, kPresent = 1, kLeft = 2 };

/// Of a rank that shows no more whether its process runs, though it has not left.
inline constexpr std::uint64_t kRests = ~std::uint64_t{0};

/// What a rank last did on a signal board.
struct SignalNote {
  enum class Act : std::uint8_t { kPosted, kWaits };
  Act act = Act::kPosted;
  FixedText<32> operation;
  FixedText<96> unit;
  std::int64_t step = -1;
};

/// Written by its own rank only; slots of different ranks share no cache line.
struct alignas(64) Slot {
  std::atomic<std::uint64_t> rounds;     ///< meetings this rank has arrived at
  std::atomic<std::uint64_t> entered;    ///< operations begun; the newest is number `entered`
  std::atomic<std::uint64_t> finished;   ///< the last operation ended
  std::atomic<std::int64_t> changed_at;  ///< base::Clock nanoseconds of the last change of these
  std::atomic<std::int64_t> noted_at;    ///< the same of `note`
  std::atomic<std::uint64_t> beats;      ///< how often this rank has shown that its process runs,
                                         ///< or kRests
  std::atomic<std::uint32_t> presence;   ///< Presence
  std::array<Published<OperationRecord>, 2> operations;  ///< operation k is in k % 2
  Published<SignalNote> note;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// View of such memory; copies refer to the same memory, which the maker of the view keeps alive.
class ControlBlock {
 public:
  static std::size_t bytes_for(int ranks, std::size_t staging_bytes);

  /// Makes zeroed memory of bytes_for() bytes a control block. One rank does this before others
  /// attach.
  static void format(std::byte* memory, int ranks, std::size_t staging_bytes,
                     base::Duration heartbeat_timeout);

  /// Attaches to formatted memory.
  explicit ControlBlock(std::byte* memory);

  ControlHeader& header() const { return *header_; }
  Slot& slot(int rank) const { return slots_[rank]; }

  /// One half of a rank's staging area, 64-byte aligned; `half` is 0 or 1.
  std::byte* staging(int rank, unsigned half) const;
  std::size_t staging_bytes() const { return header_->staging_bytes; }
  base::Duration heartbeat_timeout() const {
    return std::chrono::nanoseconds(header_->heartbeat_ns);
  }
  int ranks() const { return header_->ranks; }

 private:
  ControlHeader* header_;
  Slot* slots_;
  std::byte* staging_;
};

}  // namespace fullshard::comm::shared
