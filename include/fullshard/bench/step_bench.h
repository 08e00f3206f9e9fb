#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "fullshard/bench/step_spec.h"

namespace fullshard::bench {

/// How the training step is measured and against what.
struct StepBenchOptions {
  StepSpec spec;  ///< `sharded`, `units`, `atom` and `memory_gate` are of no account here
  /// Granularities of sharding, each a contender with the first of the other list. The first of
  /// both are what is compared with the others.
  std::vector<std::string> units = {"automatic"};
  std::vector<std::string> atoms = {"element"};
  std::string shape_name;  ///< for the report
  int pairs = 5;           ///< rounds; each runs everything once
  bool memory = true;      ///< whether one more run of each is made to measure memory

  std::string peer;         ///< path of a script to compare with; empty = none
  std::string peer_python;  ///< the Python that runs it
  std::vector<std::string> peer_modes = {"fsdp2", "fsdp1", "ddp"};

  std::string json;                       ///< file for everything that was measured; empty = none
  std::vector<std::string> measure;       ///< command that measures a StepSpec, given as its last
                                          ///< argument in JSON
  std::vector<std::string> command_line;  ///< for the report: how the user called it
};

/// Where a run is shown.
struct BenchConsole {
  std::FILE* report = stdout;    ///< tables
  std::FILE* progress = stderr;  ///< what is being done, one line a run
  bool redraw = false;           ///< whether progress is a terminal, where a line can be redrawn
};

/// Runs everything in turn, as processes of this one, and shows the tables. Returns 0, or 130 and
/// 143 after SIGINT and SIGTERM, when it has ended what it had started. When it is stopped or a run
/// fails, the rounds that were complete are shown all the same. A peer's run that fails is made
/// again once.
///
/// Throws base::Error: kUsage for options that cannot be used; kInternal when the sharded training
/// does not equal the plain one, before anything is reported; kSystem when a run fails, with the
/// end of what it wrote to standard error; kFile when the JSON cannot be written, before measuring.
///
/// Call from the main thread of a process without other threads: signals are blocked meanwhile.
int run_step_bench(const StepBenchOptions& options, const BenchConsole& console);

/// What each column of the tables means, for help.
std::string step_columns_help();

}  // namespace fullshard::bench
