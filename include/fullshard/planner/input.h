#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fullshard/config/train_config.h"
#include "fullshard/planner/assessment.h"

namespace fullshard::planner {

/// What a user has told; what is absent is as `config` or an assumption says.
struct Input {
  config::TrainConfig config;  ///< what `fullshard train` would be told
  bool is_configured = false;  ///< whether it is more than defaults
  std::string model;           ///< a known shape; empty: the trainer's model
  std::string kind;            ///< decoder or encoder
  std::optional<std::int64_t> layers, dim, heads, vocab, seq, mlp_ratio, patch;
  bool untied = false;
  std::optional<std::int64_t> batch;
  std::optional<int> micro_batches;
  std::string precision;

  std::optional<int> hosts, ranks_per_host, threads_per_rank;
  std::string memory_per_host, memory_per_rank;             ///< "24GiB", "512MiB", or bytes
  std::optional<double> gflops;                             ///< of a rank
  std::optional<double> host_bandwidth, network_bandwidth;  ///< 1e9 bytes a second
  std::optional<double> network_latency;                    ///< microseconds
  std::string measured;  ///< file of `fullshard bench step --json`
};

struct SettledJob {
  Job job;
  std::vector<std::string> assumed;  ///< flags that were not given, with what is taken
  /// How `config` trains now; absent where nothing was configured, or what no candidate is.
  std::optional<Candidate> configured;
  std::string rates_from;  ///< where measured rates are from; empty: nowhere
};

/// Puts a job together. Throws base::Error(kUsage or kConfiguration) naming the flag or field that
/// cannot be used and what would be right, and kFile for a file of measurements.
SettledJob settle(const Input& input);

/// Bytes of "24GiB", "512 MiB", "64GB" or "1048576". Throws base::Error(kUsage) naming the flag.
std::int64_t parse_bytes(const char* flag, const std::string& text);

}  // namespace fullshard::planner
