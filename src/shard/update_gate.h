#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "fullshard/comm/group.h"

namespace fullshard::shard {

/// Orders the reading and the updating of parameters. All ranks alternate between two states: every
/// shard may be read, or each rank may write its own. One round of both is a version; all begin in
/// the writing state of version 1, in which ranks put their initial shards in place.
class UpdateGate {
 public:
  /// Collective over the shard group: the gate that fits it.
  static std::unique_ptr<UpdateGate> make(comm::Group& shard);

  virtual ~UpdateGate() = default;

  /// Enters the writing state; returns at once when in it already.
  virtual void begin_write() = 0;

  /// Leaves the writing state, if in it, without waiting. A rank that may wait for others elsewhere
  /// before it reads has to call this, or they wait for its shard.
  virtual void end_write() = 0;

  /// Leaves the writing state if need be and waits until every shard may be read.
  virtual void ensure_readable(const std::string& unit) = 0;

  /// Whether ensure_readable would return at once.
  virtual bool is_readable() const = 0;

  virtual bool is_writing() const = 0;

  /// Rounds finished or in progress; the step number that errors show.
  virtual std::int64_t version() const = 0;

  /// Seconds spent waiting.
  virtual double waited_seconds() const = 0;
};

/// For ranks that read each other's shards where they are. A rank enters writing when every rank
/// has said that it reads no more, and reading when every rank has said that its shard is complete.
///
/// Counters on the board: kReadDone and kWritten hold versions.
class SharedUpdateGate final : public UpdateGate {
 public:
  static constexpr std::size_t kReadDone = 0;
  static constexpr std::size_t kWritten = 1;
  static constexpr std::size_t kCounters = 2;

  explicit SharedUpdateGate(std::unique_ptr<comm::SignalBoard> board) : board_(std::move(board)) {}

  void begin_write() override;
  void end_write() override;
  void ensure_readable(const std::string& unit) override;
  bool is_readable() const override { return readable_version_ == version_ && !writing_; }
  bool is_writing() const override { return writing_; }
  std::int64_t version() const override { return version_; }
  double waited_seconds() const override { return waited_seconds_; }

 private:
  std::unique_ptr<comm::SignalBoard> board_;
  comm::OpTag reading_;  // kept for its capacity
  std::int64_t version_ = 1;
  bool writing_ = true;
  std::int64_t readable_version_ = 0;  // every rank is known to have written this one
  double waited_seconds_ = 0;
};

/// For ranks that send each other their shards: what others read is a copy, so nobody waits. It
/// only counts.
class PrivateUpdateGate final : public UpdateGate {
 public:
  void begin_write() override {
    if (!writing_) ++version_;
    writing_ = true;
  }
  void end_write() override { writing_ = false; }
  void ensure_readable(const std::string&) override { end_write(); }
  bool is_readable() const override { return !writing_; }
  bool is_writing() const override { return writing_; }
  std::int64_t version() const override { return version_; }
  double waited_seconds() const override { return 0; }

 private:
  std::int64_t version_ = 1;
  bool writing_ = true;
};

}  // namespace fullshard::shard
