#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>

#include "launcher/fd.h"
#include "launcher/warden.h"

namespace fullshard::launcher {

/// Cuts what a descriptor gives into lines.
class LineReader {
 public:
  /// Lines of more than `longest` bytes are given in pieces.
  explicit LineReader(Fd fd, std::size_t longest = 1 << 16)
      : fd_(std::move(fd)), longest_(longest) {}

  /// -1 once the other end is closed.
  int fd() const { return fd_.get(); }

  /// Gives every complete line that is there now to `on_line`, without its end.
  void read(const std::function<void(std::string_view)>& on_line);

  /// Gives all that is there, an unfinished line too, and closes. For a writer that has ended.
  void finish(const std::function<void(std::string_view)>& on_line);

 private:
  void cut(const std::function<void(std::string_view)>& on_line);

  Fd fd_;
  std::size_t longest_;
  std::string pending_;
};

/// One started rank: the leader of a process group, with what it writes. Its destructor ends and
/// reaps it, whatever state it is in.
class Rank {
 public:
  Rank(int number, pid_t pid, LineReader reports, LineReader errors, Warden& warden);
  ~Rank();
  Rank(Rank&& other) noexcept;
  Rank& operator=(Rank&&) = delete;

  int number() const { return number_; }
  bool running() const { return pid_ > 0; }

  /// Becomes readable when the leader has ended.
  int exit_fd() const { return pidfd_.get(); }

  /// Sends `signal` to the whole group.
  void signal(int signal) const;

  /// Kills what the leader left behind in its group, reaps it, and returns its wait status. Blocks
  /// until the leader has ended.
  int reap();

  LineReader reports;  ///< what base::report_error writes
  LineReader errors;   ///< stderr; closed for a rank that writes to the console

 private:
  int number_;
  pid_t pid_;
  Fd pidfd_;
  Warden& warden_;
};

}  // namespace fullshard::launcher
