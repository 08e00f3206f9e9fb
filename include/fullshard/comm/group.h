#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "fullshard/base/error.h"
#include "fullshard/comm/types.h"
#include "fullshard/comm/work.h"

namespace fullshard::comm {

/// Memory that every rank of a group on this host sees. Zero-filled when allocated; pages cost
/// memory only once touched. The mapping lives as long as the object, on each rank by itself.
class SharedSegment {
 public:
  virtual ~SharedSegment() = default;
  virtual std::byte* data() = 0;
  virtual std::size_t size() const = 0;

  /// Gives the pages that lie wholly inside [offset, offset + bytes) back to the system, for all
  /// ranks; they read as zero afterwards. No rank may be using them.
  virtual void discard(std::size_t offset, std::size_t bytes) = 0;
};

/// A table of counters, one row a rank, that ranks use to tell each other how far they are.
/// A rank writes only its own row; counters only grow. Writing one makes everything the rank wrote
/// before visible to whoever reads the counter (release / acquire).
class SignalBoard {
 public:
  virtual ~SignalBoard() = default;

  /// Sets counter `index` of this rank to `value` and wakes waiting ranks. Never blocks.
  /// `operation` and the tag are for reports of other ranks.
  virtual void post(std::size_t index, std::uint64_t value, std::string_view operation,
                    const OpTag& tag) = 0;

  /// Counter `index` of `rank` now.
  virtual std::uint64_t value(int rank, std::size_t index) const = 0;

  /// Whether every rank's counter `index` is at least `value`.
  virtual bool reached(std::size_t index, std::uint64_t value) const = 0;

  /// Waits until reached(index, value). Throws base::Error kTimeout naming `operation`, the tag's
  /// unit and step, and the ranks that have not arrived, or kPeerLost as soon as one of them is
  /// gone.
  virtual void wait(std::size_t index, std::uint64_t value, std::string_view operation,
                    const OpTag& tag) = 0;
};

/// A fixed set of ranks that communicate. Collectives must be called by all ranks of the group with
/// the same arguments (operation, dtype, sizes); a difference ends in base::Error kMismatch that
/// shows both sides. One thread of a rank uses a group at a time.
///
/// Every blocking call ends within CommOptions::timeout, with kTimeout naming who is missing, or
/// with kPeerLost when a rank died or called abort().
class Group {
 public:
  virtual ~Group() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const CommOptions& options() const = 0;

  /// Concatenates every rank's `mine` in rank order into `all`. `counts[r]` is the number of
  /// elements of rank r; empty means all ranks give mine.count. `mine` may be the own part of
  /// `all`.
  virtual Work all_gather(ConstBuffer mine, Buffer all, std::span<const std::int64_t> counts,
                          const OpTag& tag) = 0;

  /// Combines all ranks' `all` and gives each rank its part in `mine`: `counts[r]` elements for
  /// rank r, empty means equal parts of mine.count.
  virtual Work reduce_scatter(ConstBuffer all, Buffer mine, ReduceOp op,
                              std::span<const std::int64_t> counts, const OpTag& tag) = 0;

  /// Combines all ranks' `inout` in place; every rank gets the same bits.
  virtual Work all_reduce(Buffer inout, ReduceOp op, const OpTag& tag) = 0;

  /// Copies the root's `inout` to every rank.
  virtual Work broadcast(Buffer inout, int root, const OpTag& tag) = 0;

  /// Sends send_counts[r] elements to rank r and receives recv_counts[r] from it; both buffers hold
  /// the ranks' parts one after another.
  virtual Work all_to_all(ConstBuffer send, std::span<const std::int64_t> send_counts, Buffer recv,
                          std::span<const std::int64_t> recv_counts, const OpTag& tag) = 0;

  /// Returns when every rank has called it.
  virtual void barrier(const OpTag& tag) = 0;

  /// Whether allocate_shared and allocate_signals work: all ranks are on one host.
  virtual bool shares_memory() const = 0;

  /// Collective. Memory all ranks see at once. `purpose` names it in errors.
  virtual std::unique_ptr<SharedSegment> allocate_shared(std::size_t bytes,
                                                         std::string_view purpose) = 0;

  /// Collective. `counters` counters a rank, all zero.
  virtual std::unique_ptr<SignalBoard> allocate_signals(std::size_t counters,
                                                        std::string_view purpose) = 0;

  /// Collective over this group, with the same list on every rank: a group of the given ranks,
  /// numbered there in the order of the list. Ranks that are not in the list get null. Errors of
  /// the new group speak of ranks by their numbers in the world.
  virtual std::shared_ptr<Group> subgroup(std::span<const int> ranks) = 0;

  /// Tells the other ranks that this one is leaving because of an error: their waits throw
  /// kPeerLost with `reason` at once. Never blocks, never throws.
  virtual void abort(std::string_view reason) noexcept = 0;

  /// As abort, for a failure that this rank has learnt of by other means, for instance from another
  /// group: the other ranks throw it as it is, with its code and its rank.
  virtual void fail(const base::Error& failure) noexcept = 0;

  /// Bytes that collectives of this group have sent from this rank to ranks on other hosts, without
  /// the short messages that ranks greet each other with. Any thread may call.
  virtual std::int64_t bytes_between_hosts() const = 0;
};

}  // namespace fullshard::comm
