#include "bench/memory_peak.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "fullshard/base/error.h"
#include "fullshard/base/machine.h"

namespace fullshard::bench {
namespace {

constexpr base::Duration kPoll = std::chrono::milliseconds(10);
constexpr base::Duration kSampleEvery = std::chrono::milliseconds(20);

std::int64_t sum_of(const std::vector<pid_t>& pids) {
  std::int64_t sum = 0;
  for (const pid_t pid : pids) sum += base::proportional_bytes(pid).value_or(0);
  return sum;
}

[[noreturn]] void fail_late(std::size_t arrived, int processes, base::Duration timeout) {
  throw base::Error(
      base::ErrorCode::kTimeout,
      fmt::format("of {} processes whose memory is to be read only {} have loaded their libraries "
                  "within {:.0f} s",
                  processes, arrived, base::seconds(timeout)));
}

}  // namespace

MemoryPeak follow_memory(ChildProcess& run, const MemoryGate& gate, int processes,
                         base::Duration timeout) {
  const auto deadline = base::Deadline::after(timeout);
  std::vector<pid_t> pids;
  while (pids.size() < static_cast<std::size_t>(processes)) {
    if (run.wait(kPoll)) return {};
    pids = gate.arrived();
    if (deadline.passed()) fail_late(pids.size(), processes, timeout);
  }
  const std::int64_t base = sum_of(pids);
  MemoryPeak peak{.base_bytes = base, .peak_bytes = base};
  gate.open();
  while (!run.wait(kSampleEvery)) {
    peak.peak_bytes = std::max(peak.peak_bytes, sum_of(pids));
    ++peak.samples;
  }
  return peak;
}

}  // namespace fullshard::bench
