#include "trainer/run_totals.h"

#include <algorithm>

namespace fullshard::trainer {

void RunTotals::add(const StepReport& report) {
  step_seconds += report.step_seconds;
  data_seconds += report.data_seconds;
  compute_seconds += report.compute_seconds;
  exposed_comm_seconds += report.exposed_comm_seconds;
  optimizer_seconds += report.optimizer_seconds;
  tokens += report.tokens;
  peak_rss_bytes = std::max(peak_rss_bytes, report.peak_rss_bytes);
  peak_unsharded_bytes = std::max(peak_unsharded_bytes, report.peak_unsharded_bytes);
}

}  // namespace fullshard::trainer
