#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "bench/memory_peak.h"
#include "fullshard/bench/statistics.h"
#include "fullshard/bench/step_bench.h"
#include "fullshard/bench/step_result.h"

namespace fullshard::bench {

struct StepRun {
  StepResult result;
  double wall_seconds = 0;  ///< of the whole process, from its start to its end
  double others_share = 0;  ///< of the machine's CPU time meanwhile, used by other processes
};

/// All that was measured of one contender; runs in the order of the rounds.
struct Measured {
  std::string name;
  std::vector<StepRun> runs;
  std::optional<MemoryPeak> memory;
  int failed_runs = 0;  ///< that were made again
};

struct StepReport {
  StepBenchOptions options;
  Machine machine;  ///< at the start
  std::vector<Measured> measured;
  double largest_difference = 0;  ///< of plain and sharded training, relative
};

/// Speed of one contender as a multiple of another's, round by round.
struct SpeedRatio {
  std::string against;
  std::vector<double> pairs;
  Spread spread;
};

/// Of sharded training against each other contender.
std::vector<SpeedRatio> speed_ratios(const StepReport& report);

/// Peak memory of one contender as a multiple of plain training's; nothing unless both were
/// measured.
std::optional<double> memory_ratio(const StepReport& report, const Measured& contender);

/// Bytes of parameters that the rank owns which owns most, as a multiple of the mean; nothing for
/// contenders that do not tell.
std::optional<double> unevenness(const Measured& contender);

/// Time in which ranks waited for one another or reduced gradients, as a share of the step: median
/// over the runs; nothing for contenders that do not tell.
std::optional<double> exposed_share(const Measured& contender);

/// What people read.
std::string report_text(const StepReport& report);

/// Everything, as one JSON object.
std::string report_json(const StepReport& report);

}  // namespace fullshard::bench
