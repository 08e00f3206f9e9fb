#include "fullshard/planner/machines.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "fullshard/base/error.h"

namespace fullshard::planner {
namespace {

constexpr int kMostHosts = 4096;
constexpr int kMostRanks = 1024;

[[noreturn]] void reject(const std::string& message) {
  throw base::Error(base::ErrorCode::kUsage, message);
}

void require(const char* flag, int value, int high) {
  if (value >= 1 && value <= high) return;
  reject(fmt::format("--{}: found {}; expected an integer from 1 to {}", flag, value, high));
}

void require_above_zero(const char* flag, double value) {
  if (std::isfinite(value) && value > 0) return;
  reject(fmt::format("--{}: found {}; expected a number above 0", flag, value));
}

}  // namespace

void validate(const Machines& machines) {
  require("hosts", machines.hosts, kMostHosts);
  require("ranks-per-host", machines.ranks_per_host, kMostRanks);
  require("threads-per-rank", machines.threads_per_rank, kMostRanks);
  require_above_zero("memory-per-host", static_cast<double>(machines.memory_per_host));
  require_above_zero("flops", machines.flops);
  require_above_zero("host-bandwidth", machines.host_bandwidth);
  require_above_zero("network-bandwidth", machines.network_bandwidth);
  if (!std::isfinite(machines.network_latency) || machines.network_latency < 0) {
    reject(fmt::format("--network-latency: found {}; expected a number, 0 or more",
                       machines.network_latency));
  }
}

}  // namespace fullshard::planner
