#pragma once

#include <cstdint>

namespace fullshard::optim {

/// Learning rate that rises linearly from base_lr / (warmup_steps + 1) at step 0 to base_lr at step
/// warmup_steps, then falls along half a cosine to base_lr * min_lr_ratio at step total_steps - 1,
/// and stays there. A pure function of the step, so a resumed run cannot drift.
struct WarmupCosine {
  double base_lr = 1e-3;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 1;
  double min_lr_ratio = 0.1;

  /// Throws kConfiguration naming the field that cannot be used.
  void validate() const;

  /// The rate of `step`, counted from 0.
  double lr(std::int64_t step) const;
};

}  // namespace fullshard::optim
