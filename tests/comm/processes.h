#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace fullshard::comm::testing {

/// How a child process ended.
struct Ended {
  int exit_code = -1;  ///< -1 when a signal ended it
  int signal = 0;
  std::string text;  ///< what its body threw, empty when it returned

  bool exited_well() const { return exit_code == 0; }
};

/// Child processes of a test, numbered as they are started. Those still there are killed at the
/// end.
class Processes {
 public:
  Processes() = default;
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  /// Forks; the child runs `body` and exits with 0, or with 1 when it threw or an expectation
  /// failed. The calling process must have one thread.
  void start(const std::function<void()>& body);

  pid_t pid(int child) const { return children_[static_cast<std::size_t>(child)].pid; }
  void kill(int child) const;
  Ended wait(int child);

 private:
  struct Child {
    pid_t pid = -1;
    int text_fd = -1;
  };
  std::vector<Child> children_;
};

}  // namespace fullshard::comm::testing
