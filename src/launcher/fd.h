#pragma once

#include <unistd.h>

#include <string>
#include <utility>

namespace fullshard::launcher {

/// Owns a file descriptor; -1 is none.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void reset() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

struct Pipe {
  Fd read;
  Fd write;
};

/// A pipe whose ends are closed on exec; its read end does not block when `nonblocking_read`.
Pipe make_pipe(bool nonblocking_read);

/// Throws base::Error(kSystem): "cannot <what>: <reason of errno>".
[[noreturn]] void fail_errno(const std::string& what);

/// Writes everything, as far as the other end lets it.
void write_fully(int fd, const char* data, std::size_t size);

}  // namespace fullshard::launcher
