#pragma once

#include <cstdint>

#include "fullshard/comm/group.h"

namespace fullshard::trainer {

/// What one rank knows of a step and all must learn.
struct RankNote {
  double loss_sum = 0;       ///< over its targets
  std::int64_t targets = 0;  ///< that are to be learnt
  int stop_signal = 0;
  std::int64_t peak_rss_bytes = 0;
  std::int64_t peak_unsharded_bytes = 0;
};

/// All ranks' notes put together: sums, the largest peaks, and the signal of any rank that was
/// asked to stop. One collective; the same bits on every rank.
RankNote exchange(comm::Group& group, const RankNote& mine, std::int64_t step);

/// The sum of all ranks' counts. Collective.
std::int64_t sum_over_ranks(comm::Group& group, std::int64_t count, std::int64_t step);

/// The signal of any rank that was asked to stop, 0 when none was. Collective.
int agree_on_stop(comm::Group& group, int signal);

}  // namespace fullshard::trainer
