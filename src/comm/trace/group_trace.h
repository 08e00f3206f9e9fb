#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/shared/operation.h"
#include "comm/trace/recorder.h"

namespace fullshard::comm::trace {

/// An operation while it goes on. It has failed unless finish() was called.
class Flight {
 public:
  /// `group` is given where finishing counts, and then outlives this.
  Flight(Ring& ring, Ring::Ticket ticket, GroupEntry* group, std::uint64_t sequence)
      : ring_(ring), ticket_(ticket), group_(group), sequence_(sequence) {}
  Flight(Flight&& other) noexcept
      : ring_(other.ring_),
        ticket_(std::exchange(other.ticket_, 0)),
        group_(other.group_),
        sequence_(other.sequence_) {}
  ~Flight() { fail(); }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;
  Flight& operator=(Flight&&) = delete;

  void finish() noexcept;
  void fail() noexcept;

 private:
  Ring& ring_;
  Ring::Ticket ticket_;
  GroupEntry* group_;
  std::uint64_t sequence_;
};

/// Records what a rank does on one signal board. Any thread.
class BoardTrace {
 public:
  BoardTrace(std::shared_ptr<Recorder> recorder, std::shared_ptr<BoardEntry> board);

  void post(std::size_t counter, std::uint64_t value, std::string_view operation,
            const OpTag& tag) noexcept;
  Flight wait(std::size_t counter, std::uint64_t value, std::string_view operation,
              const OpTag& tag) noexcept;

 private:
  Note note(FlightKind kind, std::size_t counter, std::uint64_t value, std::string_view operation,
            const OpTag& tag) const;

  std::shared_ptr<Recorder> recorder_;
  std::shared_ptr<BoardEntry> board_;
};

/// Records what a rank does in one group. Held by the group; any thread.
class GroupTrace {
 public:
  /// The group of all ranks, and the recorder of this one.
  static std::shared_ptr<GroupTrace> of_world(int rank, int world_size, const CommOptions& options);

  /// A group with a name of its own: the same on all its ranks, and of no other group of theirs.
  GroupTrace(std::shared_ptr<Recorder> recorder, std::string name, std::vector<int> ranks);

  /// The ranks as numbered in the world.
  const std::vector<int>& ranks() const { return group_->ranks; }
  const std::shared_ptr<Recorder>& recorder() const { return recorder_; }

  /// The group that this rank alone is.
  std::shared_ptr<GroupTrace> self() const;

  /// The group that operation `sequence` of this one makes.
  std::shared_ptr<GroupTrace> subgroup(std::uint64_t sequence, std::vector<int> ranks) const;

  /// The signal board that operation `sequence` of this group makes.
  std::unique_ptr<BoardTrace> board(std::uint64_t sequence, std::string_view purpose,
                                    std::size_t counters) const;

  /// Operation `sequence` of the group begins.
  Flight begin(std::uint64_t sequence, const shared::OperationRecord& record) noexcept;

  /// See Recorder::write_failure().
  std::string write_failure(std::string_view reason) const noexcept {
    return recorder_->write_failure(reason);
  }

 private:
  std::shared_ptr<Recorder> recorder_;
  std::shared_ptr<GroupEntry> group_;
};

}  // namespace fullshard::comm::trace
