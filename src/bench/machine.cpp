#include "bench/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "fullshard/base/machine.h"

namespace fullshard::bench {
namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

std::string kernel_release() {
  utsname names{};
  return ::uname(&names) == 0 ? names.release : "";
}

}  // namespace

Machine describe_machine() {
  Machine machine{.cpu = cpu_model(),
                  .cpus = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)),
                  .usable_cpus = base::available_cores(),
                  .memory_bytes = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE),
                  .kernel = kernel_release(),
                  .huge_pages = first_line("/sys/kernel/mm/transparent_hugepage/enabled")};
  if (::getloadavg(machine.load.data(), 3) != 3) machine.load = {};
  return machine;
}

double busy_cpu_seconds() {
  // "cpu user nice system idle iowait irq softirq steal ..."
  std::ifstream stat("/proc/stat");
  std::string name;
  std::array<double, 8> ticks{};
  stat >> name;
  for (double& value : ticks) stat >> value;
  const double busy = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7];
  return busy / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace fullshard::bench
