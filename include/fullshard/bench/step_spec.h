#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fullshard/bench/step_shape.h"

namespace fullshard::bench {

/// The strategies that can be measured, as shard::ShardingStrategy names them.
std::vector<std::string> strategy_names();

/// Words for what is gathered at once; besides them a number, of the parameters that a unit has at
/// least.
std::vector<std::string> units_names();

/// Where parameters may be cut between ranks, as layout::Atom names it in lower case; `heads` cuts
/// attention between groups of 4 heads, and MLPs by rows of the first matrix and columns of the
/// second.
std::vector<std::string> atom_names();

/// One measurement, in one process or in one a rank.
struct StepSpec {
  StepShape shape;
  bool sharded = true;
  /// Ranks and threads of each when sharded. Unsharded, one process with ranks x threads threads
  /// trains on the batches of all ranks: the same work on the same cores.
  int ranks = 2;
  int threads = 1;
  std::string strategy = "FULL_SHARD";  ///< one of strategy_names()
  std::string units = "automatic";      ///< one of units_names(), or a number
  std::string atom = "element";         ///< one of atom_names()
  int recompute = 0;                    ///< every n-th block is run again in backward; 0 = none
  int steps = 6;                        ///< the first one warms up and is not measured
  std::string memory_gate;              ///< folder of a MemoryGate; empty = do not stop there
};

int process_count(const StepSpec& spec);
int threads_per_process(const StepSpec& spec);

/// The number that `units` is; 0 for a word.
std::int64_t least_unit(std::string_view units);

/// Throws base::Error(kUsage) naming the field that cannot be used and what would be right.
void validate(const StepSpec& spec);

std::string to_json(const StepSpec& spec);

/// Reads what to_json wrote, all of it. Throws base::Error(kConfiguration).
StepSpec parse_step_spec(std::string_view json);

}  // namespace fullshard::bench
