#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "fullshard/launcher/launch.h"
#include "support/temporary_folder.h"

namespace fullshard::launcher {

/// A folder that goes with the test; ranks see it as $DIR.
class TestFolder {
 public:
  std::string path(const std::string& name) const { return folder_.path(name); }
  bool has(const std::string& name) const { return std::filesystem::exists(path(name)); }

  /// Contents without the last line end; empty when there is no such file.
  std::string read(const std::string& name) const;

  /// Options that run `script` with sh on every rank, with $DIR, and $CHILD for launcher_child.
  LaunchOptions shell(int nproc, const std::string& script) const;

 private:
  fullshard::testing::TemporaryFolder folder_;
};

/// Waits until `condition` holds; fails the test when it does not within a minute.
void wait_until(const std::function<bool()>& condition, const std::string& what);

/// Exit code of launch() and what appeared on stderr and stdout meanwhile.
struct Outcome {
  int exit_code;
  std::string out;
  std::string err;
};
Outcome run(const LaunchOptions& options);

/// Calls launch() in another process, which ends with its exit code and writes stderr to a file. It
/// ignores the signal `ignored`, 0 for none.
pid_t launch_apart(const LaunchOptions& options, const std::string& stderr_path = "/dev/null",
                   int ignored = 0);

/// Exit code of a process of launch_apart(); 1000 + signal when it was killed.
int wait_for(pid_t process);

/// Whether a process is there and is no zombie.
bool alive(pid_t process);

}  // namespace fullshard::launcher
