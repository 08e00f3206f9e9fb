#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/c10d/collectives.h"
#include "comm/c10d/lane.h"
#include "comm/c10d/membership.h"
#include "comm/c10d/transfer.h"
#include "comm/shared/greeter.h"
#include "comm/shared/pulse.h"
#include "comm/shared/roll_call.h"
#include "comm/trace/group_trace.h"
#include "fullshard/comm/group.h"
#include "fullshard/rendezvous/store.h"

namespace fullshard::comm::c10d {

/// Throws when there is no use in waiting any longer.
using Look = std::function<void()>;

/// Connects ranks that meet under the keys of `store`, this one as the one at `rank` of `members`,
/// their numbers in the world. Collective. Throws base::Error when they do not come within
/// `timeout`, and what `look` throws, which is called again and again while it waits for them.
using ConnectRanks = std::function<std::unique_ptr<Link>(const rendezvous::Store& store, int rank,
                                                         std::span<const int> members,
                                                         base::Duration timeout, const Look& look)>;

/// Where the ranks of a group are.
struct Placement {
  std::vector<int> host_of;  ///< by rank, a number of its host
  /// The ranks of this host, in their order, with shared memory between them; null when messages go
  /// between all ranks. Null on all ranks or on none.
  std::shared_ptr<Group> inside;
};

/// Group whose ranks send each other messages over a backend of c10d. Collectives are made of
/// messages here, and reductions are ours, in the order of the ranks; or of messages between hosts
/// and shared memory inside them, when the placement says so. Subgroups are then the quickest that
/// their ranks' hosts allow: shared memory on one host, messages for one rank a host, or both.
///
/// Operations run one after the other on a thread of the group; a Work waits for its own. Each
/// begins with a greeting, in which every rank tells every other what it is calling; so differences
/// are found, and absentees known, before data moves. A Work that is dropped without a wait waits
/// by itself; during the unwinding of an exception it makes this rank give up first.
class C10dGroup final : public Group,
                        public shared::Greeter,
                        public shared::Pulse,
                        public shared::RollCall {
 public:
  /// Collective: connects the ranks that `trace` lists, with `look` as above, and meets them once.
  /// All ranks pass the same options.staging.
  C10dGroup(rendezvous::Store store, ConnectRanks connect, const Look& look, int rank,
            std::shared_ptr<trace::GroupTrace> trace, Placement placement, CommOptions options);

  /// Waits for the operations that were started, then leaves. During the unwinding of an exception
  /// the others are told of an error first.
  ~C10dGroup() override;

  int rank() const override { return membership_->rank(); }
  int size() const override { return membership_->size(); }
  const CommOptions& options() const override { return options_; }
  bool shares_memory() const override { return false; }

  Work all_gather(ConstBuffer mine, Buffer all, std::span<const std::int64_t> counts,
                  const OpTag& tag) override;
  Work reduce_scatter(ConstBuffer all, Buffer mine, ReduceOp op,
                      std::span<const std::int64_t> counts, const OpTag& tag) override;
  Work all_reduce(Buffer inout, ReduceOp op, const OpTag& tag) override;
  Work broadcast(Buffer inout, int root, const OpTag& tag) override;
  Work all_to_all(ConstBuffer send, std::span<const std::int64_t> send_counts, Buffer recv,
                  std::span<const std::int64_t> recv_counts, const OpTag& tag) override;
  void barrier(const OpTag& tag) override;
  void greet(const shared::OperationRecord& record) override;
  void look(const shared::OperationRecord& record) override;
  int world_rank() const override { return membership_->world_rank(rank()); }
  shared::Whereabouts whereabouts() const override {
    return {placement_.host_of, placement_.inside != nullptr};
  }

  /// Throw kMisuse: there is no memory that ranks on several hosts all see.
  std::unique_ptr<SharedSegment> allocate_shared(std::size_t bytes,
                                                 std::string_view purpose) override;
  std::unique_ptr<SignalBoard> allocate_signals(std::size_t counters,
                                                std::string_view purpose) override;

  std::shared_ptr<Group> subgroup(std::span<const int> ranks) override;
  void abort(std::string_view reason) noexcept override;
  void fail(const base::Error& failure) noexcept override {
    membership_->fail(failure.code(), failure.rank(), failure.what());
  }
  std::int64_t bytes_between_hosts() const override { return bytes_between_hosts_.load(); }
  int find_silent(base::Duration grace) noexcept override;
  void beat() noexcept override { membership_->beat(); }
  void rest() noexcept override {}  // it still answers
  std::vector<Beats> beats() override { return membership_->beats(); }
  std::optional<base::Error> find_failure() override { return membership_->failure(); }
  std::string account_of(int world_rank) override { return membership_->account_of(world_rank); }

 private:
  using Algorithm = std::function<void(Call)>;

  std::string named(const shared::OperationRecord& record) const;
  std::shared_ptr<Job> start(const shared::OperationRecord& record, Algorithm algorithm);
  Work begin(const shared::OperationRecord& record, Algorithm algorithm);
  void run(std::uint64_t number, const shared::OperationRecord& record, const Algorithm& algorithm);
  void carry_out(std::uint64_t number, const shared::OperationRecord& record,
                 const Algorithm& algorithm);
  [[noreturn]] void rethrow(const base::Error& error) const;
  void interrupt() noexcept;
  int member(int world_rank) const;  // its number in the group, -1 when it is none
  int waited_for() noexcept;
  void ring() noexcept;
  std::shared_ptr<Group> make_subgroup(std::span<const int> ranks, const Look& look);
  [[noreturn]] void give_up_subgroup(const base::Error& error);
  std::shared_ptr<Group> inside_of(std::span<const int> ranks) const;
  void exchange_counts(Transfer& transfer, const std::vector<std::int64_t>& send,
                       const std::vector<std::int64_t>& recv);

  rendezvous::Store store_;
  ConnectRanks connect_;
  std::shared_ptr<trace::GroupTrace> trace_;
  CommOptions options_;
  Placement placement_;
  std::vector<bool> elsewhere_;  // by rank, whether it is on another host
  std::atomic<std::int64_t> bytes_between_hosts_ = 0;
  std::unique_ptr<Collectives> collectives_;
  std::unique_ptr<Link> data_;
  int exceptions_at_start_;
  std::atomic<bool> busy_ = false;
  std::uint64_t started_ = 0;  // operations; written by whoever starts one

  std::mutex current_mutex_;  // guards what follows
  Transfer* current_ = nullptr;
  bool timed_out_ = false;

  std::shared_ptr<Membership> membership_;
  std::unique_ptr<Alarm> alarm_;
  std::unique_ptr<Lane> lane_;  // the last member: ends first
};

}  // namespace fullshard::comm::c10d
