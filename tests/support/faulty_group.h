#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "support/forwarding_group.h"

namespace fullshard::testing {

/// What goes wrong in one call of one rank.
struct Fault {
  enum class Kind {
    kDelay,    ///< it comes late
    kDrop,     ///< it never comes: `meanwhile` is called instead, and then Dropped is thrown
    kCorrupt,  ///< what it says of the call is wrong; a board is posted nothing
    kKill,     ///< its process ends
    kStop      ///< its process stops
  };
  Kind kind = Kind::kDelay;
  int rank = 0;            ///< of the group
  std::string operation;   ///< name of the method, such as "all_gather" or "wait"; empty: any
  int occurrence = 1;      ///< which of the rank's calls of that name, from 1
  base::Duration delay{};  ///< of kDelay
  std::function<void()> meanwhile = [] {};
};

struct Dropped : std::runtime_error {
  Dropped() : std::runtime_error("this rank was made not to come") {}
};

/// Waits for the call that the fault is about. Shared by a group and what it made.
class FaultTrigger {
 public:
  FaultTrigger(Fault fault, int rank) : fault_(std::move(fault)), is_here_(rank == fault_.rank) {}

  /// Before a call is passed on. Returns whether it is to be corrupted.
  bool pull(const char* operation) {
    const bool named = fault_.operation.empty() || fault_.operation == operation;
    if (!is_here_ || !named || ++calls_ != fault_.occurrence) return false;
    switch (fault_.kind) {
      case Fault::Kind::kDelay: std::this_thread::sleep_for(fault_.delay); return false;
      case Fault::Kind::kDrop: fault_.meanwhile(); throw Dropped();
      case Fault::Kind::kCorrupt: return true;
      case Fault::Kind::kKill: raise(SIGKILL); return false;
      case Fault::Kind::kStop: raise(SIGSTOP); return false;
    }
    return false;
  }

  comm::OpTag tag(const char* operation, const comm::OpTag& given) {
    return pull(operation) ? comm::OpTag{given.unit + "~", given.step} : given;
  }

 private:
  Fault fault_;
  bool is_here_;
  std::atomic<int> calls_ = 0;
};

class FaultySignals final : public comm::SignalBoard {
 public:
  FaultySignals(std::shared_ptr<FaultTrigger> trigger, std::unique_ptr<comm::SignalBoard> board)
      : trigger_(std::move(trigger)), board_(std::move(board)) {}

  void post(std::size_t index, std::uint64_t value, std::string_view operation,
            const comm::OpTag& tag) override {
    if (!trigger_->pull("post")) board_->post(index, value, operation, tag);
  }
  std::uint64_t value(int rank, std::size_t index) const override {
    return board_->value(rank, index);
  }
  bool reached(std::size_t index, std::uint64_t value) const override {
    return board_->reached(index, value);
  }
  void wait(std::size_t index, std::uint64_t value, std::string_view operation,
            const comm::OpTag& tag) override {
    board_->wait(index, value, operation, trigger_->tag("wait", tag));
  }

 private:
  std::shared_ptr<FaultTrigger> trigger_;
  std::unique_ptr<comm::SignalBoard> board_;
};

/// Memory that a rank may fail over: "data" and "discard" are its calls.
class FaultySegment final : public comm::SharedSegment {
 public:
  FaultySegment(std::shared_ptr<FaultTrigger> trigger, std::unique_ptr<comm::SharedSegment> segment)
      : trigger_(std::move(trigger)), segment_(std::move(segment)) {}

  std::byte* data() override {
    if (trigger_->pull("data")) segment_->data()[0] ^= std::byte{1};
    return segment_->data();
  }
  std::size_t size() const override { return segment_->size(); }
  void discard(std::size_t offset, std::size_t bytes) override {
    trigger_->pull("discard");
    segment_->discard(offset, bytes);
  }

 private:
  std::shared_ptr<FaultTrigger> trigger_;
  std::unique_ptr<comm::SharedSegment> segment_;
};

/// Any group, with one fault in what one rank does with it, its boards, segments and subgroups.
class FaultyGroup final : public ForwardingGroup {
 public:
  FaultyGroup(std::shared_ptr<comm::Group> group, Fault fault)
      : FaultyGroup(group, std::make_shared<FaultTrigger>(std::move(fault), group->rank())) {}
  FaultyGroup(std::shared_ptr<comm::Group> group, std::shared_ptr<FaultTrigger> trigger)
      : ForwardingGroup(std::move(group)), trigger_(std::move(trigger)) {}

  comm::Work all_gather(comm::ConstBuffer mine, comm::Buffer all,
                        std::span<const std::int64_t> counts, const comm::OpTag& tag) override {
    return group().all_gather(mine, all, counts, trigger_->tag("all_gather", tag));
  }
  comm::Work reduce_scatter(comm::ConstBuffer all, comm::Buffer mine, comm::ReduceOp op,
                            std::span<const std::int64_t> counts, const comm::OpTag& tag) override {
    return group().reduce_scatter(all, mine, op, counts, trigger_->tag("reduce_scatter", tag));
  }
  comm::Work all_reduce(comm::Buffer inout, comm::ReduceOp op, const comm::OpTag& tag) override {
    return group().all_reduce(inout, op, trigger_->tag("all_reduce", tag));
  }
  comm::Work broadcast(comm::Buffer inout, int root, const comm::OpTag& tag) override {
    return group().broadcast(inout, root, trigger_->tag("broadcast", tag));
  }
  comm::Work all_to_all(comm::ConstBuffer send, std::span<const std::int64_t> send_counts,
                        comm::Buffer recv, std::span<const std::int64_t> recv_counts,
                        const comm::OpTag& tag) override {
    return group().all_to_all(send, send_counts, recv, recv_counts,
                              trigger_->tag("all_to_all", tag));
  }
  void barrier(const comm::OpTag& tag) override { group().barrier(trigger_->tag("barrier", tag)); }
  std::unique_ptr<comm::SharedSegment> allocate_shared(std::size_t bytes,
                                                       std::string_view purpose) override {
    const bool corrupt = trigger_->pull("allocate_shared");
    return std::make_unique<FaultySegment>(
        trigger_, group().allocate_shared(corrupt ? bytes + 1 : bytes, purpose));
  }
  std::unique_ptr<comm::SignalBoard> allocate_signals(std::size_t counters,
                                                      std::string_view purpose) override {
    const bool corrupt = trigger_->pull("allocate_signals");
    return std::make_unique<FaultySignals>(
        trigger_, group().allocate_signals(corrupt ? counters + 1 : counters, purpose));
  }
  std::shared_ptr<comm::Group> subgroup(std::span<const int> ranks) override {
    const bool corrupt = trigger_->pull("subgroup");
    auto made = group().subgroup(corrupt ? ranks.first(1) : ranks);
    return made == nullptr ? nullptr : std::make_shared<FaultyGroup>(std::move(made), trigger_);
  }

 private:
  std::shared_ptr<FaultTrigger> trigger_;
};

}  // namespace fullshard::testing
