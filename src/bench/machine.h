#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace fullshard::bench {

/// What figures of this machine depend on.
struct Machine {
  std::string cpu;      ///< model name
  int cpus = 0;         ///< of the machine
  int usable_cpus = 0;  ///< by affinity and quota
  std::int64_t memory_bytes = 0;
  std::string kernel;
  std::string huge_pages;        ///< transparent huge pages: the kernel's setting
  std::array<double, 3> load{};  ///< load averages over 1, 5 and 15 minutes
};

/// As it is now. What the system does not tell stays empty.
Machine describe_machine();

/// CPU seconds that all processes of the machine have used since it started, time stolen by its
/// host included.
double busy_cpu_seconds();

}  // namespace fullshard::bench
