#include "fullshard/optim/warmup_cosine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "fullshard/base/error.h"

namespace fullshard::optim {

void WarmupCosine::validate() const {
  const auto require = [](bool holds, const std::string& message) {
    if (!holds) throw base::Error(base::ErrorCode::kConfiguration, "learning rate: " + message);
  };
  require(std::isfinite(base_lr) && base_lr >= 0,
          fmt::format("base_lr must be 0 or above and finite, not {}", base_lr));
  require(total_steps >= 1, fmt::format("total_steps must be at least 1, not {}", total_steps));
  require(warmup_steps >= 0 && warmup_steps < total_steps,
          fmt::format("warmup_steps must be from 0 to total_steps - 1 = {}, not {}",
                      total_steps - 1, warmup_steps));
  require(min_lr_ratio >= 0 && min_lr_ratio <= 1,
          fmt::format("min_lr_ratio must be from 0 to 1, not {}", min_lr_ratio));
}

double WarmupCosine::lr(std::int64_t step) const {
  if (step < warmup_steps) {
    return base_lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps + 1);
  }
  const std::int64_t length = std::max<std::int64_t>(1, total_steps - 1 - warmup_steps);
  const double progress =
      std::min(1.0, static_cast<double>(step - warmup_steps) / static_cast<double>(length));
  const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return base_lr * (min_lr_ratio + (1.0 - min_lr_ratio) * cosine);
}

}  // namespace fullshard::optim
