#pragma once

#include <cstdint>

namespace fullshard::trainer {

/// The most memory this process has had resident since it began; 0 when the system does not say.
std::int64_t peak_resident_bytes();

/// Memory of this machine.
std::int64_t machine_memory_bytes();

}  // namespace fullshard::trainer
