#pragma once

#include <memory>
#include <string>
#include <utility>

#include "fullshard/comm/group.h"

namespace fullshard::testing {

/// Passes everything on to another group; tests derive from it what they want to see or to change.
class ForwardingGroup : public comm::Group {
 public:
  explicit ForwardingGroup(std::shared_ptr<comm::Group> group) : group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const comm::CommOptions& options() const override { return group_->options(); }
  bool shares_memory() const override { return group_->shares_memory(); }

  comm::Work all_gather(comm::ConstBuffer mine, comm::Buffer all,
                        std::span<const std::int64_t> counts, const comm::OpTag& tag) override {
    return group_->all_gather(mine, all, counts, tag);
  }
  comm::Work reduce_scatter(comm::ConstBuffer all, comm::Buffer mine, comm::ReduceOp op,
                            std::span<const std::int64_t> counts, const comm::OpTag& tag) override {
    return group_->reduce_scatter(all, mine, op, counts, tag);
  }
  comm::Work all_reduce(comm::Buffer inout, comm::ReduceOp op, const comm::OpTag& tag) override {
    return group_->all_reduce(inout, op, tag);
  }
  comm::Work broadcast(comm::Buffer inout, int root, const comm::OpTag& tag) override {
    return group_->broadcast(inout, root, tag);
  }
  comm::Work all_to_all(comm::ConstBuffer send, std::span<const std::int64_t> send_counts,
                        comm::Buffer recv, std::span<const std::int64_t> recv_counts,
                        const comm::OpTag& tag) override {
    return group_->all_to_all(send, send_counts, recv, recv_counts, tag);
  }
  void barrier(const comm::OpTag& tag) override { group_->barrier(tag); }
  std::unique_ptr<comm::SharedSegment> allocate_shared(std::size_t bytes,
                                                       std::string_view purpose) override {
    return group_->allocate_shared(bytes, purpose);
  }
  std::unique_ptr<comm::SignalBoard> allocate_signals(std::size_t counters,
                                                      std::string_view purpose) override {
    return group_->allocate_signals(counters, purpose);
  }
  std::shared_ptr<comm::Group> subgroup(std::span<const int> ranks) override {
    return group_->subgroup(ranks);
  }
  void abort(std::string_view reason) noexcept override { group_->abort(reason); }
  void fail(const base::Error& failure) noexcept override { group_->fail(failure); }
  std::int64_t bytes_between_hosts() const override { return group_->bytes_between_hosts(); }

 protected:
  comm::Group& group() const { return *group_; }

 private:
  std::shared_ptr<comm::Group> group_;
};

}  // namespace fullshard::testing
