#pragma once

#include <memory>
#include <string_view>

#include "fullshard/comm/mixed.h"

namespace fullshard::comm::mixed {

/// See make_mixed_group().
class MixedGroup final : public Group {
 public:
  MixedGroup(std::shared_ptr<Group> host, std::shared_ptr<Group> devices);

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  const CommOptions& options() const override { return host_->options(); }
  bool shares_memory() const override { return host_->shares_memory(); }

  Work all_gather(ConstBuffer mine, Buffer all, std::span<const std::int64_t> counts,
                  const OpTag& tag) override;
  Work reduce_scatter(ConstBuffer all, Buffer mine, ReduceOp op,
                      std::span<const std::int64_t> counts, const OpTag& tag) override;
  Work all_reduce(Buffer inout, ReduceOp op, const OpTag& tag) override;
  Work broadcast(Buffer inout, int root, const OpTag& tag) override;
  Work all_to_all(ConstBuffer send, std::span<const std::int64_t> send_counts, Buffer recv,
                  std::span<const std::int64_t> recv_counts, const OpTag& tag) override;
  void barrier(const OpTag& tag) override { host_->barrier(tag); }

  std::unique_ptr<SharedSegment> allocate_shared(std::size_t bytes,
                                                 std::string_view purpose) override;
  std::unique_ptr<SignalBoard> allocate_signals(std::size_t counters,
                                                std::string_view purpose) override;
  std::shared_ptr<Group> subgroup(std::span<const int> ranks) override;
  void abort(std::string_view reason) noexcept override;
  void fail(const base::Error& failure) noexcept override;
  std::int64_t bytes_between_hosts() const override {
    return host_->bytes_between_hosts() + devices_->bytes_between_hosts();
  }

 private:
  Group& side_of(ConstBuffer buffer) const;
  Group& side_of(ConstBuffer first, ConstBuffer second, std::string_view operation) const;

  std::shared_ptr<Group> host_;
  std::shared_ptr<Group> devices_;
};

}  // namespace fullshard::comm::mixed
