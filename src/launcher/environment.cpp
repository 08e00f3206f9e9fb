#include "launcher/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "fullshard/base/error_report.h"

namespace fullshard::launcher {
namespace {

using Variables = std::map<std::string, std::string>;

Variables own_environment() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

}  // namespace

std::vector<std::string> rank_environment(const LaunchOptions& options, int rank,
                                          std::uint16_t port, const RankFds& fds) {
  Variables variables = own_environment();
  if (options.threads_per_rank > 0) {
    variables.try_emplace("OMP_NUM_THREADS", fmt::format("{}", options.threads_per_rank));
  }
  for (const auto& [name, value] : options.environment) variables[name] = value;
  for (const char* name : {"RANK", "LOCAL_RANK"}) variables[name] = fmt::format("{}", rank);
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) {
    variables[name] = fmt::format("{}", options.nproc);
  }
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = fmt::format("{}", port);
  variables[base::kErrorFdVariable] = fmt::format("{}", fds.reports);
  variables.erase(kStoreFdVariable);
  if (fds.store >= 0) variables[kStoreFdVariable] = fmt::format("{}", fds.store);
  std::vector<std::string> result;
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

}  // namespace fullshard::launcher
