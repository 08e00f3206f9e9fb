#pragma once

#include <cstdint>

#include "trainer/step_report.h"

namespace fullshard::trainer {

/// Sums and peaks over the steps of a run.
struct RunTotals {
  double seconds = 0;  ///< from the first step's begin to the last one's end, with validation
  double step_seconds = 0;
  double data_seconds = 0;
  double compute_seconds = 0;
  double exposed_comm_seconds = 0;
  double optimizer_seconds = 0;
  std::int64_t tokens = 0;
  std::int64_t peak_rss_bytes = 0;
  std::int64_t peak_unsharded_bytes = 0;

  void add(const StepReport& report);
};

}  // namespace fullshard::trainer
