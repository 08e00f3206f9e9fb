#pragma once

#include <cstdint>

#include "support/forwarding_group.h"

namespace fullshard::testing {

/// Bytes of the buffers that a rank passed to a group's collectives, by operation.
struct GroupCounts {
  std::int64_t all_gather = 0;  ///< of the whole
  std::int64_t reduce_scatter = 0;
  std::int64_t all_reduce = 0;
  std::int64_t broadcast = 0;
};

class CountedGroup final : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;

  GroupCounts counts;

  comm::Work all_gather(comm::ConstBuffer mine, comm::Buffer all,
                        std::span<const std::int64_t> sizes, const comm::OpTag& tag) override {
    counts.all_gather += bytes_of(all);
    return ForwardingGroup::all_gather(mine, all, sizes, tag);
  }
  comm::Work reduce_scatter(comm::ConstBuffer all, comm::Buffer mine, comm::ReduceOp op,
                            std::span<const std::int64_t> sizes, const comm::OpTag& tag) override {
    counts.reduce_scatter += bytes_of(all);
    return ForwardingGroup::reduce_scatter(all, mine, op, sizes, tag);
  }
  comm::Work all_reduce(comm::Buffer inout, comm::ReduceOp op, const comm::OpTag& tag) override {
    counts.all_reduce += bytes_of(inout);
    return ForwardingGroup::all_reduce(inout, op, tag);
  }
  comm::Work broadcast(comm::Buffer inout, int root, const comm::OpTag& tag) override {
    counts.broadcast += bytes_of(inout);
    return ForwardingGroup::broadcast(inout, root, tag);
  }

 private:
  static std::int64_t bytes_of(const comm::ConstBuffer& buffer) {
    return buffer.count * static_cast<std::int64_t>(base::size_of(buffer.dtype));
  }
};

}  // namespace fullshard::testing
