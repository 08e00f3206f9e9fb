#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "fullshard/base/deadline.h"

namespace fullshard::bench {

/// While it lives, SIGINT, SIGTERM and SIGCHLD are held back from the calling thread, for
/// ChildProcess to wait for. Main thread of a process without other threads.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  const sigset_t& held() const { return held_; }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t held_;
  sigset_t before_;
};

/// A stop was asked for with this signal while a child ran; the child has been ended.
struct Stopped {
  int signal;
};

/// A program to run; its standard input is empty.
struct Invocation {
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;  ///< set in addition to ours
  std::vector<std::string> unset;                                ///< taken out of it
};

/// What became of a child.
struct ChildEnd {
  int exit_code = 0;  ///< 128 + the signal when one ended it
  std::string output;
  std::string errors;  ///< what it wrote to standard error
  double wall_seconds = 0;
  double cpu_seconds = 0;  ///< of it and of all processes that it has waited for
};

/// A running program, leader of its own process group. Gets SIGTERM when this process dies. The
/// destructor ends the whole group.
class ChildProcess {
 public:
  /// Throws base::Error(kSystem) naming the program when it cannot be run. `signals` must outlive
  /// this object.
  ChildProcess(const Invocation& invocation, const HeldSignals& signals);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// Sleeps until the child has ended, at most for `interval`; true when it has. Throws Stopped.
  bool wait(base::Duration interval);

  /// After wait() has returned true; once.
  ChildEnd end();

 private:
  bool reap_ended();
  void reap();  ///< kills what is left
  void stop();

  const HeldSignals& signals_;
  base::Clock::time_point start_ = base::Clock::now();
  int output_ = -1;  ///< memory without a name, so that nothing stays behind and no pipe fills up
  int errors_ = -1;
  pid_t pid_ = -1;
  bool ended_ = false;
  ChildEnd end_;
};

/// Throws base::Error(kSystem) with the end of its standard error when the run called `name`
/// failed.
void require_success(const std::string& name, const ChildEnd& end);

/// The last lines of a text, for a message.
std::string last_lines(const std::string& text, std::size_t lines);

}  // namespace fullshard::bench
