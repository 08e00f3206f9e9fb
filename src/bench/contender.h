#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bench/child_process.h"
#include "fullshard/bench/step_bench.h"

namespace fullshard::bench {

inline constexpr const char* kPlain = "plain";
inline constexpr const char* kSharded = "sharded";

/// The mode in which the peer is one process, without torchrun, on the batches of all ranks.
inline constexpr const char* kSingleMode = "single";

/// One of the things that are compared: a program that takes training steps and prints a
/// StepResult.
struct Contender {
  std::string name;
  int processes = 1;  ///< that stop at a memory gate
  int attempts = 1;   ///< how often a run may be made before a failure counts
  bool ours = false;  ///< trains the model from the same values as plain, so that losses agree
  /// How to run it for so many steps; with a memory gate's folder it stops there.
  std::function<Invocation(int steps, const std::string& memory_gate)> invoke;
};

/// Runs a command with so many threads of OpenMP, and without what a surrounding launcher or an
/// earlier measurement may have left in the environment.
Invocation make_invocation(std::vector<std::string> command, int threads);

/// Plain, sharded, sharded in other granularities, and the peer in each of its modes.
std::vector<Contender> make_contenders(const StepBenchOptions& options);

/// The sharded runs of a measurement by the names of their contenders, kSharded first. There must
/// be one of each of the lists at least.
std::vector<std::pair<std::string, StepSpec>> sharded_specs(const StepBenchOptions& options);

}  // namespace fullshard::bench
