#include "fullshard/bench/memory_gate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

#include "fullshard/base/error.h"

namespace fullshard::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = ".pid";

void create_empty(const fs::path& path) {
  if (std::ofstream(path)) return;
  throw base::Error(base::ErrorCode::kFile, fmt::format("cannot create {}", path.string()));
}

}  // namespace

MemoryGate::MemoryGate() : folder_(fs::temp_directory_path() / "fullshard-bench-XXXXXX") {
  if (::mkdtemp(folder_.data()) == nullptr) {
    throw base::Error(base::ErrorCode::kFile, fmt::format("cannot create a folder in {}: {}",
                                                          fs::temp_directory_path().string(),
                                                          std::generic_category().message(errno)));
  }
}

MemoryGate::~MemoryGate() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

std::vector<pid_t> MemoryGate::arrived() const {
  std::vector<pid_t> pids;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename();
    pid_t pid = 0;
    const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error == std::errc() && std::string_view(stop) == kSuffix) pids.push_back(pid);
  }
  return pids;
}

void MemoryGate::open() const { create_empty(fs::path(folder_) / "go"); }

void stop_at_memory_gate(const std::string& folder, base::Duration timeout) {
  constexpr auto kPoll = std::chrono::milliseconds(10);
  create_empty(fs::path(folder) / fmt::format("{}{}", ::getpid(), kSuffix));
  const auto deadline = base::Deadline::after(timeout);
  while (!fs::exists(fs::path(folder) / "go")) {
    if (deadline.passed()) {
      throw base::Error(base::ErrorCode::kTimeout,
                        fmt::format("nobody has let this process go on in {} within {:.0f} s",
                                    folder, base::seconds(timeout)));
    }
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace fullshard::bench
