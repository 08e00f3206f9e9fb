#include "trainer/process_memory.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace fullshard::trainer {

std::int64_t peak_resident_bytes() {
  // Not getrusage(): its figure survives exec, and so counts whoever started this process.
  constexpr std::string_view kKey = "VmHWM:";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(kKey)) return std::stoll(line.substr(kKey.size())) * 1024;
  }
  return 0;
}

std::int64_t machine_memory_bytes() {
  return std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

}  // namespace fullshard::trainer
