#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/shared/arguments.h"
#include "comm/shared/greeter.h"
#include "comm/shared/pulse.h"
#include "comm/shared/session.h"
#include "fullshard/comm/group.h"

namespace fullshard::comm::shared {

class CollectiveCall;

/// Group over a control block that all ranks see; the backends differ in their Fabric only.
///
/// Data moves through the ranks' staging areas. Each area has two halves, used in turn, with at
/// least one meeting between; so whoever writes a half again knows that everyone has finished
/// reading it, because everyone has since arrived at a later meeting.
class SharedGroup final : public Group, public Greeter, public Pulse {
 public:
  explicit SharedGroup(std::shared_ptr<Session> session);

  int rank() const override { return session_->rank(); }
  int size() const override { return session_->size(); }
  const CommOptions& options() const override { return session_->options(); }
  bool shares_memory() const override { return true; }

  Work all_gather(ConstBuffer mine, Buffer all, std::span<const std::int64_t> counts,
                  const OpTag& tag) override;
  Work reduce_scatter(ConstBuffer all, Buffer mine, ReduceOp op,
                      std::span<const std::int64_t> counts, const OpTag& tag) override;
  Work all_reduce(Buffer inout, ReduceOp op, const OpTag& tag) override;
  Work broadcast(Buffer inout, int root, const OpTag& tag) override;
  Work all_to_all(ConstBuffer send, std::span<const std::int64_t> send_counts, Buffer recv,
                  std::span<const std::int64_t> recv_counts, const OpTag& tag) override;
  void barrier(const OpTag& tag) override;
  void greet(const OperationRecord& record) override;
  void look(const OperationRecord& record) override;
  int world_rank() const override { return session_->world_rank(rank()); }
  Whereabouts whereabouts() const override {
    return {std::vector<int>(static_cast<std::size_t>(size()), 0)};
  }

  std::unique_ptr<SharedSegment> allocate_shared(std::size_t bytes,
                                                 std::string_view purpose) override;
  std::unique_ptr<SignalBoard> allocate_signals(std::size_t counters,
                                                std::string_view purpose) override;
  std::shared_ptr<Group> subgroup(std::span<const int> ranks) override;
  void abort(std::string_view reason) noexcept override { session_->abort(reason); }
  void fail(const base::Error& failure) noexcept override {
    session_->record_failure(failure.code(), failure.rank(), failure.what());
  }
  std::int64_t bytes_between_hosts() const override { return 0; }

  void beat() noexcept override { session_->beat(); }
  void rest() noexcept override { session_->rest(); }
  std::vector<Beats> beats() override { return session_->beats(); }
  std::optional<base::Error> find_failure() override { return session_->find_failure(); }
  std::string account_of(int world_rank) override { return session_->account_of(world_rank); }

 private:
  std::byte* staging(int rank) const { return session_->block().staging(rank, half_); }
  std::int64_t staged_elements(base::DType dtype, int pieces) const;
  void reduce_whole(CollectiveCall& call, std::byte* data, std::int64_t count, base::DType dtype,
                    ReduceOp op);
  void reduce_split(CollectiveCall& call, std::byte* data, std::int64_t count, base::DType dtype,
                    ReduceOp op);
  std::int64_t exchange_counts(CollectiveCall& call, const Parts& send, const Parts& recv);
  std::shared_ptr<SharedSegment> hand_out(CollectiveCall& call, std::size_t bytes,
                                          std::string_view purpose);

  std::shared_ptr<Session> session_;
  std::atomic<bool> busy_ = false;
  unsigned half_ = 0;
};

/// Bytes of one half of a rank's staging area in a group of `ranks` ranks; checks the options.
std::size_t staging_for(int ranks, const CommOptions& options);

/// A control block for `ranks` ranks in memory of the fabric, ready to attach to.
std::shared_ptr<SharedSegment> make_control_block(Fabric& fabric, int ranks,
                                                  const CommOptions& options);

}  // namespace fullshard::comm::shared
