#pragma once

#include <string>
#include <string_view>

namespace fullshard::planner {

/// Rates that a benchmark has found.
struct MeasuredRates {
  double flops_per_thread = 0;  ///< a second, in forward and backward, less what was exposed
  double host_bandwidth = 0;    ///< bytes a second of the optimizer's update, all ranks together
  std::string machine;          ///< the processor's name
  double others_share = 0;      ///< of the machine, that other processes took meanwhile; the median
};

/// Reads what `fullshard bench step --json FILE` wrote: of its runs of sharded training the medians
/// of forward, backward, exposed time and optimizer, with 6 N + 12 L d S operations a token and 28
/// bytes a parameter that AdamW reads and writes. Throws base::Error(kConfiguration) that names
/// `source` and what is missing.
MeasuredRates measured_rates(std::string_view json, std::string_view source);

/// The same of a file. Throws base::Error(kFile) too.
MeasuredRates read_measured_rates(const std::string& path);

}  // namespace fullshard::planner
