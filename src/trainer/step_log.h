#pragma once

#include <cstdint>
#include <string>

#include "fullshard/base/deadline.h"
#include "trainer/console.h"
#include "trainer/step_report.h"

namespace fullshard::trainer {

/// Shows steps on a console: a line for the first, the last and every log_freq-th, in torchtitan's
/// form, and the progress bar for all. Speed in a line is that since the line before.
class StepLog {
 public:
  /// `console` must outlive it.
  StepLog(Console& console, std::int64_t log_freq, std::int64_t total_steps);

  void step(const StepReport& report);

 private:
  std::string line(const StepReport& report) const;

  Console& console_;
  std::int64_t log_freq_;
  std::int64_t total_steps_;
  base::Clock::time_point start_ = base::Clock::now();
  // Since the last line.
  std::int64_t tokens_ = 0;
  double seconds_ = 0;
  double used_ = 0;  // seconds times mfu
};

}  // namespace fullshard::trainer
