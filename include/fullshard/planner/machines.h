#pragma once

#include <cstdint>

namespace fullshard::planner {

/// The hosts of a job, all alike. Rates are what a training step really gets, not what is on the
/// box: measure them with `fullshard bench` where that is possible (planner/measured.h).
struct Machines {
  int hosts = 1;
  int ranks_per_host = 8;
  int threads_per_rank = 1;
  std::int64_t memory_per_host = std::int64_t{64} << 30;  ///< bytes that the job may use

  /// Floating-point operations a second of one rank in a training step.
  double flops = 50e9;
  /// Bytes a second that all ranks of a host together read and write in memory, when they add up
  /// gradients or update parameters.
  double host_bandwidth = 25e9;
  /// Bytes a second that a host sends to the others, and receives at the same time.
  double network_bandwidth = 1.25e9;
  /// Seconds from one host to another and into the program there.
  double network_latency = 50e-6;
  /// Seconds that a gather or a reduction costs a rank besides bytes.
  double unit_overhead = 20e-6;
  /// Bytes that libraries allocate in a process that works (docs/design/memory.md).
  std::int64_t library_bytes = std::int64_t{17} << 20;

  int world() const { return hosts * ranks_per_host; }
};

/// Operations a second that are assumed of one thread in fp32.
inline constexpr double kAssumedFlopsPerThread = 50e9;

/// Throws base::Error(kUsage) naming the flag that cannot be used and what would be right.
void validate(const Machines& machines);

}  // namespace fullshard::planner
