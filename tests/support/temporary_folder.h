#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace fullshard::testing {

/// A new folder that is removed with the object, in the process that made it: a forked child that
/// ends leaves it alone.
class TemporaryFolder {
 public:
  TemporaryFolder() : maker_(getpid()) {
    std::string name = std::filesystem::temp_directory_path() / "fullshard-test-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("cannot make a folder like " + name);
    }
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (maker_ == getpid()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// A path inside; with content, a file that has it.
  std::string path(std::string_view name) const { return path_ / name; }
  std::string write(std::string_view name, std::string_view content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

 private:
  std::filesystem::path path_;
  pid_t maker_;
};

}  // namespace fullshard::testing
