#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "support/forwarding_group.h"

namespace fullshard::testing {

/// A slow link: each gather and each reduction ends `delay` after it and those before it could,
/// while the rank goes on.
class SlowGroup final : public ForwardingGroup {
 public:
  SlowGroup(std::shared_ptr<comm::Group> group, std::chrono::milliseconds delay)
      : ForwardingGroup(std::move(group)), delay_(delay) {}

  comm::Work all_gather(comm::ConstBuffer mine, comm::Buffer all,
                        std::span<const std::int64_t> counts, const comm::OpTag& tag) override {
    return later(ForwardingGroup::all_gather(mine, all, counts, tag));
  }
  comm::Work reduce_scatter(comm::ConstBuffer all, comm::Buffer mine, comm::ReduceOp op,
                            std::span<const std::int64_t> counts, const comm::OpTag& tag) override {
    return later(ForwardingGroup::reduce_scatter(all, mine, op, counts, tag));
  }

 private:
  using Clock = std::chrono::steady_clock;

  comm::Work later(comm::Work work) {
    free_at_ = std::max(free_at_, Clock::now()) + delay_;
    const Clock::time_point end = free_at_;
    return comm::Work(
        [work, end]() mutable {
          work.wait();
          std::this_thread::sleep_until(end);
        },
        [work, end] { return Clock::now() >= end && work.done(); });
  }

  std::chrono::milliseconds delay_;
  Clock::time_point free_at_;
};

}  // namespace fullshard::testing
