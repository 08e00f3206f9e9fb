#include "comm/host.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "fullshard/base/error.h"
#include "fullshard/base/text.h"

namespace fullshard::comm {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

// Abstract UNIX sockets reach as far as the network namespace; containers usually have one each.
std::string network_namespace() {
  struct stat status {};
  if (stat("/proc/self/ns/net", &status) != 0) return "";
  return fmt::format("{}", status.st_ino);
}

}  // namespace

Host this_host(const CommOptions& options) {
  const char* variable = std::getenv("FULLSHARD_HOST");
  const std::string label = options.host.empty() && variable != nullptr ? variable : options.host;
  return {label.empty() ? host_name() : label, boot_id() + "/" + network_namespace() + "/" + label};
}

std::string to_text(const Host& host) { return host.identity + "\n" + host.name; }

Host host_from_text(const std::string& text) {
  const auto cut = std::min(text.find('\n'), text.size());
  return {cut < text.size() ? text.substr(cut + 1) : "", text.substr(0, cut)};
}

std::vector<int> number_hosts(std::span<const Host> hosts) {
  std::vector<std::string> known;
  std::vector<int> numbers;
  for (const Host& host : hosts) {
    const auto place = std::find(known.begin(), known.end(), host.identity);
    numbers.push_back(static_cast<int>(place - known.begin()));
    if (place == known.end()) known.push_back(host.identity);
  }
  return numbers;
}

std::string describe_if_several(std::span<const Host> hosts) {
  std::vector<std::pair<Host, std::vector<int>>> places;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    auto place = std::find_if(places.begin(), places.end(), [&](const auto& known) {
      return known.first.identity == hosts[rank].identity;
    });
    if (place == places.end()) place = places.insert(places.end(), {hosts[rank], {}});
    place->second.push_back(static_cast<int>(rank));
  }
  if (places.size() < 2) return "";
  std::string where;
  for (const auto& [host, ranks] : places) {
    where +=
        fmt::format("{}{} on {}", where.empty() ? "" : "; ", base::name_ranks(ranks), host.name);
  }
  return fmt::format("the ranks are on {} hosts, or in containers with networks of their own: {}",
                     places.size(), where);
}

BackendChoice choose_backend(BackendChoice wanted, std::span<const Host> hosts) {
  const std::string several = describe_if_several(hosts);
  if (wanted == BackendChoice::kShm && !several.empty()) {
    throw base::Error(base::ErrorCode::kConfiguration,
                      several +
                          "; shared memory reaches one host only: use the backend 'auto' or "
                          "'gloo', or start all ranks on one host");
  }
  if (wanted != BackendChoice::kAuto) return wanted;
  return several.empty() ? BackendChoice::kShm : BackendChoice::kHosts;
}

}  // namespace fullshard::comm
