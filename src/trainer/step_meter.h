#pragma once

#include <cstdint>

#include "fullshard/base/deadline.h"
#include "fullshard/shard/sharded_module.h"
#include "trainer/step_report.h"

namespace fullshard::trainer {

/// Measures one step as phases that follow one another without a gap.
class StepMeter {
 public:
  /// Starts the first phase. Both must outlive the meter.
  StepMeter(const shard::ShardedModule& sharded, StepReport& report);

  /// Ends a phase and starts the next: the time that the engine stood still in it is added to the
  /// report's exposed_comm_seconds, the rest to `seconds`.
  void end_phase(double& seconds);

  /// In the phases that have ended.
  std::int64_t peak_unsharded_bytes() const { return last_.peak_unsharded_bytes; }

  /// Fills in the step's sum and counts.
  void finish();

 private:
  const shard::ShardedModule& sharded_;
  StepReport& report_;
  shard::Counters first_;
  shard::Counters last_;
  base::Clock::time_point phase_begin_;
};

}  // namespace fullshard::trainer
