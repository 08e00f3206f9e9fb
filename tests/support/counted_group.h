#pragma once

#include <memory>
#include <string>
#include <utility>

#include "fullshard/comm/group.h"

namespace fullshard::testing {

/// Bytes of the buffers that a rank passed to a group's collectives, by operation.
struct GroupCounts {
  std::int64_t all_gather = 0;  ///< of the whole
  std::int64_t reduce_scatter = 0;
  std::int64_t all_reduce = 0;
  std::int64_t broadcast = 0;
};

/// Passes everything on to another group, and counts.
class CountedGroup final : public comm::Group {
 public:
  explicit CountedGroup(std::shared_ptr<comm::Group> group) : group_(std::move(group)) {}

  GroupCounts counts;

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const comm::CommOptions& options() const override { return group_->options(); }
  bool shares_memory() const override { return group_->shares_memory(); }

  comm::Work all_gather(comm::ConstBuffer mine, comm::Buffer all,
                        std::span<const std::int64_t> sizes, const comm::OpTag& tag) override {
    counts.all_gather += bytes_of(all);
    return group_->all_gather(mine, all, sizes, tag);
  }
  comm::Work reduce_scatter(comm::ConstBuffer all, comm::Buffer mine, comm::ReduceOp op,
                            std::span<const std::int64_t> sizes, const comm::OpTag& tag) override {
    counts.reduce_scatter += bytes_of(all);
    return group_->reduce_scatter(all, mine, op, sizes, tag);
  }
  comm::Work all_reduce(comm::Buffer inout, comm::ReduceOp op, const comm::OpTag& tag) override {
    counts.all_reduce += bytes_of(inout);
    return group_->all_reduce(inout, op, tag);
  }
  comm::Work broadcast(comm::Buffer inout, int root, const comm::OpTag& tag) override {
    counts.broadcast += bytes_of(inout);
    return group_->broadcast(inout, root, tag);
  }
  comm::Work all_to_all(comm::ConstBuffer send, std::span<const std::int64_t> send_sizes,
                        comm::Buffer recv, std::span<const std::int64_t> recv_sizes,
                        const comm::OpTag& tag) override {
    return group_->all_to_all(send, send_sizes, recv, recv_sizes, tag);
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

 private:
  static std::int64_t bytes_of(const comm::Buffer& buffer) {
    return buffer.count * static_cast<std::int64_t>(base::size_of(buffer.dtype));
  }
  static std::int64_t bytes_of(const comm::ConstBuffer& buffer) {
    return buffer.count * static_cast<std::int64_t>(base::size_of(buffer.dtype));
  }

  std::shared_ptr<comm::Group> group_;
};

}  // namespace fullshard::testing
