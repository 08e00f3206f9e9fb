#pragma once

namespace fullshard::base {

/// Cores that this process may use: its CPU affinity, and the CPU quota of its control group where
/// one is set (rounded up). At least 1.
int available_cores();

}  // namespace fullshard::base
