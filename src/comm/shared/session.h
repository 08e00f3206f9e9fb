#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/shared/control_block.h"
#include "comm/shared/counters.h"
#include "comm/shared/fabric.h"
#include "comm/shared/pulse.h"
#include "comm/trace/group_trace.h"
#include "fullshard/base/deadline.h"
#include "fullshard/base/error.h"
#include "fullshard/comm/group.h"

namespace fullshard::comm::shared {

/// A blocking call in progress: until when, and what to call it in an error.
struct Waiting {
  base::Deadline deadline;
  std::function<std::string()> describe;  ///< called only on the way to an error
  trace::Flight* flight = nullptr;        ///< marked as failed then
};

/// One rank's seat at a group's control block: posting counters, waiting for those of others,
/// noticing failure and death, and saying what happened. All waiting of the shared backends is in
/// wait().
///
/// No wake-up is lost: a poster stores its counter and then reads `sleepers`; a waiter announces
/// itself in `sleepers` and then reads the counters. Both are sequentially consistent, so one of
/// the two sees the other. Of several posters only the one that raises the minimum rings, which is
/// the last of them in that same order.
class Session {
 public:
  /// Takes the seat `rank` of the group that `trace` records. Errors and `fabric` speak in the
  /// world's numbers of ranks. Not collective.
  Session(std::shared_ptr<SharedSegment> memory, int rank, std::shared_ptr<trace::GroupTrace> trace,
          std::shared_ptr<Fabric> fabric, CommOptions options);

  /// Leaves the group. During the unwinding of an exception the other ranks are told of an error.
  /// Never blocks, never throws.
  ~Session();

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int rank() const { return rank_; }
  int size() const { return block_.ranks(); }
  int world_rank(int rank) const { return members()[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& members() const { return trace_->ranks(); }
  trace::GroupTrace& trace() const { return *trace_; }
  const CommOptions& options() const { return options_; }
  const ControlBlock& block() const { return block_; }
  const std::shared_ptr<Fabric>& fabric() const { return fabric_; }

  /// Raises this rank's counter and wakes waiting ranks. Never blocks.
  void post(const Counters& counters, std::size_t index, std::uint64_t value);

  /// Returns when every rank's counter is at least `value`; throws as SignalBoard::wait does.
  void wait(const Counters& counters, std::size_t index, std::uint64_t value,
            const Waiting& waiting);

  /// Throws the group's failure if it has one. `waiting` is the call that cannot be made.
  void throw_if_failed(const Waiting& waiting) const;

  /// Throws an error of the group, after writing the flight record if that is wanted.
  [[noreturn]] void raise(base::ErrorCode code, const std::string& message, int cause_rank,
                          trace::Flight* flight) const;

  /// As throw_if_failed, and fails the group when a rank has died without leaving. Any thread.
  void look(const std::function<std::string()>& what);

  /// Makes `message` the group's failure unless it already has one, and wakes everyone.
  void record_failure(base::ErrorCode code, int cause_rank, std::string_view message) noexcept;

  void abort(std::string_view reason) noexcept;

  /// Counters of the meetings of a group's operations.
  Counters rounds() const;

  /// As those of Pulse. Any thread. After rest() the others expect no more beats.
  void beat() noexcept;
  void rest() noexcept;
  std::vector<Pulse::Beats> beats() const;
  std::optional<base::Error> find_failure();
  std::string account_of(int world_rank) const;

  /// Notes what this rank does on a signal board, for other ranks' reports.
  void note(SignalNote::Act act, std::string_view operation, const OpTag& tag);

 private:
  std::optional<base::Error> failure() const;
  std::optional<std::pair<int, std::string>> find_loss() const;
  void ring();
  bool spin(const Counters& counters, std::size_t index, std::uint64_t value) const;
  void look_for_trouble(const Counters& counters, std::size_t index, std::uint64_t value,
                        const Waiting& waiting);
  [[noreturn]] void fail(base::ErrorCode code, int cause_rank, const std::string& message,
                         const Waiting& waiting);
  void time_out(const Counters& counters, std::size_t index, std::uint64_t value,
                const Waiting& waiting);

  std::shared_ptr<SharedSegment> memory_;
  ControlBlock block_;
  int rank_;
  std::shared_ptr<trace::GroupTrace> trace_;
  std::shared_ptr<Fabric> fabric_;
  CommOptions options_;
  int exceptions_at_start_;
  int process_;
};

}  // namespace fullshard::comm::shared
