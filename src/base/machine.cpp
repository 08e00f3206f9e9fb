#include "fullshard/base/machine.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <string_view>

#include "fullshard/base/error.h"

namespace fullshard::base {
namespace {

int affinity_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  // A machine with more processors than cpu_set_t holds makes the call fail.
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return CPU_SETSIZE;
  return CPU_COUNT(&allowed);
}

/// Cores of a "quota period" line of cgroup v2's cpu.max; `fallback` when there is no limit.
int quota_cores(const char* path, int fallback) {
  std::ifstream file(path);
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return fallback;
  return static_cast<int>(std::ceil(std::atof(quota.c_str()) / period));
}

}  // namespace

std::optional<std::int64_t> proportional_bytes(pid_t pid) {
  constexpr std::string_view kKey = "Pss:";
  std::ifstream rollup(fmt::format("/proc/{}/smaps_rollup", pid));
  for (std::string line; std::getline(rollup, line);) {
    if (line.starts_with(kKey)) return std::stoll(line.substr(kKey.size())) * 1024;
  }
  if (!std::ifstream("/proc/self/smaps_rollup")) {
    throw Error(ErrorCode::kSystem,
                "this system has no /proc/PID/smaps_rollup to measure memory with");
  }
  return std::nullopt;
}

int available_cores() {
  const int cores = affinity_cores();
  return std::max(1, std::min(cores, quota_cores("/sys/fs/cgroup/cpu.max", cores)));
}

}  // namespace fullshard::base
