#pragma once

#include <string>
#include <vector>

#include "fullshard/bench/collectives_spec.h"
#include "fullshard/bench/step_bench.h"

namespace fullshard::bench {

/// How collectives are measured: shared memory against Gloo, in turn.
struct CollectivesBenchOptions {
  CollectivesSpec spec;              ///< `backend` is of no account here
  int rounds = 5;                    ///< each runs both backends once
  std::string json;                  ///< file for everything that was measured; empty = none
  std::vector<std::string> measure;  ///< command that measures a CollectivesSpec, given as its last
                                     ///< argument in JSON
  std::vector<std::string> command_line;  ///< for the report
};

/// Runs both backends in turn, as processes of this one, and shows the table. Returns and throws as
/// run_step_bench does; what was measured before an error is not shown. Same demands on the thread.
int run_collectives_bench(const CollectivesBenchOptions& options, const BenchConsole& console);

}  // namespace fullshard::bench
