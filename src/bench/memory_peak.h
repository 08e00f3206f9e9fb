#pragma once

#include <cstdint>
#include <vector>

#include "bench/child_process.h"
#include "fullshard/bench/memory_gate.h"

namespace fullshard::bench {

/// Memory of all processes of a run together: the sum of their proportional set sizes, in which a
/// page that several share counts once.
struct MemoryPeak {
  std::int64_t base_bytes = 0;  ///< libraries loaded, no model yet
  std::int64_t peak_bytes = 0;  ///< the largest sum that was sampled
  int samples = 0;

  std::int64_t above_base() const { return peak_bytes - base_bytes; }
};

/// Follows a run whose `processes` processes stop at the gate: reads their base there, lets them
/// go on, and samples them until the run has ended. A sample costs the processes tens of
/// milliseconds for gigabytes, so such a run is not timed. No samples when the run ends before the
/// gate. Throws Stopped, and base::Error(kTimeout) when not all come to the gate within `timeout`.
MemoryPeak follow_memory(ChildProcess& run, const MemoryGate& gate, int processes,
                         base::Duration timeout = std::chrono::minutes(5));

}  // namespace fullshard::bench
