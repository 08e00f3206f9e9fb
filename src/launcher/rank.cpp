#include "launcher/rank.h"

#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <csignal>

namespace fullshard::launcher {
namespace {

constexpr std::size_t kPipeCapacity = 1 << 16;

/// glibc 2.36 declares its pidfd_open without C linkage, so C++ cannot call it.
int open_pidfd(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

}  // namespace

void LineReader::read(const std::function<void(std::string_view)>& on_line) {
  // One piece a call: a writer that never pauses must not keep the launcher from its other ranks.
  std::array<char, kPipeCapacity> buffer;
  const ssize_t size = ::read(fd_.get(), buffer.data(), buffer.size());
  if (size < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (size <= 0) return finish(on_line);
  pending_.append(buffer.data(), static_cast<std::size_t>(size));
  cut(on_line);
}

void LineReader::cut(const std::function<void(std::string_view)>& on_line) {
  std::size_t begin = 0;
  for (std::size_t end = pending_.find('\n'); end != std::string::npos;
       end = pending_.find('\n', begin)) {
    on_line(std::string_view(pending_).substr(begin, end - begin));
    begin = end + 1;
  }
  pending_.erase(0, begin);
  if (pending_.size() <= longest_) return;
  on_line(pending_);
  pending_.clear();
}

void LineReader::finish(const std::function<void(std::string_view)>& on_line) {
  const Fd fd = std::move(fd_);
  std::array<char, kPipeCapacity> buffer;
  const ssize_t size = fd.open() ? ::read(fd.get(), buffer.data(), buffer.size()) : 0;
  if (size > 0) pending_.append(buffer.data(), static_cast<std::size_t>(size));
  cut(on_line);
  if (!pending_.empty()) on_line(pending_);
  pending_.clear();
}

Rank::Rank(int number, pid_t pid, LineReader reports_of_rank, LineReader errors_of_rank,
           Warden& warden)
    : reports(std::move(reports_of_rank)),
      errors(std::move(errors_of_rank)),
      number_(number),
      pid_(pid),
      pidfd_(open_pidfd(pid)),
      warden_(warden) {
  warden_.watch(pid_);
  if (pidfd_.open()) return;
  const int error = errno;
  signal(SIGKILL);
  reap();
  errno = error;
  fail_errno("watch a rank's process");
}

Rank::Rank(Rank&& other) noexcept
    : reports(std::move(other.reports)),
      errors(std::move(other.errors)),
      number_(other.number_),
      pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      warden_(other.warden_) {}

Rank::~Rank() {
  if (!running()) return;
  signal(SIGKILL);
  reap();
}

void Rank::signal(int signal) const {
  if (running()) ::kill(-pid_, signal);
}

int Rank::reap() {
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0 &&
         errno == EINTR) {
  }
  signal(SIGKILL);
  warden_.forget(pid_);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return status;
}

}  // namespace fullshard::launcher
