#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace fullshard::base {

/// Cores that this process may use: its CPU affinity, and the CPU quota of its control group where
/// one is set (rounded up). At least 1.
int available_cores();

/// Proportional set size of a process in bytes, from /proc/PID/smaps_rollup: a page that several
/// processes map counts in equal parts. Nothing when the process has ended. Throws
/// base::Error(kSystem) when the system does not tell it.
std::optional<std::int64_t> proportional_bytes(pid_t pid);

}  // namespace fullshard::base
