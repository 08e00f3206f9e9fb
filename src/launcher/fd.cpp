#include "launcher/fd.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "fullshard/base/error.h"

namespace fullshard::launcher {

void fail_errno(const std::string& what) {
  throw base::Error(base::ErrorCode::kSystem, fmt::format("cannot {}: {}", what, strerror(errno)));
}

Pipe make_pipe(bool nonblocking_read) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_errno("create a pipe");
  Pipe pipe{Fd(ends[0]), Fd(ends[1])};
  if (nonblocking_read && ::fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) fail_errno("set up a pipe");
  return pipe;
}

void write_fully(int fd, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(fd, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    data += written;
    size -= static_cast<std::size_t>(written);
  }
}

}  // namespace fullshard::launcher
