#pragma once

#include <cstdint>
#include <string>

#include "fullshard/comm/group.h"

namespace fullshard::shard {

/// Orders the reading and the updating of parameters that ranks share. All ranks alternate between
/// two states: everybody may read every shard, or each rank may write its own. A rank enters
/// writing when every rank has said that it reads no more, and reading when every rank has said
/// that its shard is complete. One round of both is a version.
///
/// Counters on the board: kReadDone and kWritten hold versions.
class UpdateGate {
 public:
  static constexpr std::size_t kReadDone = 0;
  static constexpr std::size_t kWritten = 1;
  static constexpr std::size_t kCounters = 2;

  /// Starts in the writing state of version 1: ranks put their initial shards in place.
  explicit UpdateGate(comm::SignalBoard& board) : board_(board) {}

  /// Enters the writing state; returns at once when in it already.
  void begin_write();

  /// Leaves the writing state, if in it, without waiting. A rank that may wait for others elsewhere
  /// before it reads has to call this, or they wait for its shard.
  void end_write();

  /// Leaves the writing state if need be and waits until every rank's shard is complete.
  void ensure_readable(const std::string& unit);

  /// Whether ensure_readable would return at once.
  bool is_readable() const { return readable_version_ == version_ && !writing_; }

  bool is_writing() const { return writing_; }

  /// Rounds finished or in progress; the step number that errors show.
  std::int64_t version() const { return version_; }

  /// Seconds spent waiting in both calls together.
  double waited_seconds() const { return waited_seconds_; }

 private:
  comm::SignalBoard& board_;
  std::int64_t version_ = 1;
  bool writing_ = true;
  std::int64_t readable_version_ = 0;  // every rank is known to have written this one
  double waited_seconds_ = 0;
};

}  // namespace fullshard::shard
