#include "launcher/warden.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

namespace fullshard::launcher {
namespace {

constexpr std::size_t kMostGroups = 1024;

/// Signals meant for the job must not reach the warden, and it must keep no file of the job open.
void stand_apart(int pipe) {
  ::setsid();
  ::prctl(PR_SET_NAME, "fullshard-guard");
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, nullptr);
  ::dup2(pipe, STDIN_FILENO);
  ::close_range(STDIN_FILENO + 1, ~0U, 0);
}

/// The warden's whole life. A fork of the launcher: nothing here may allocate.
[[noreturn]] void guard() {
  std::array<pid_t, kMostGroups> groups{};
  auto end = groups.begin();
  pid_t message = 0;
  while (::read(STDIN_FILENO, &message, sizeof(message)) == sizeof(message)) {
    if (message < 0) {
      end = std::remove(groups.begin(), end, -message);
    } else if (end != groups.end()) {
      *end++ = message;
    }
  }
  std::for_each(groups.begin(), end, [](pid_t group) { ::kill(-group, SIGKILL); });
  ::_exit(0);
}

}  // namespace

Warden::Warden() : pipe_(make_pipe(false)) {
  pid_ = ::fork();
  if (pid_ < 0) fail_errno("start another process");
  if (pid_ == 0) {
    stand_apart(pipe_.read.get());
    guard();
  }
  pipe_.read.reset();
}

Warden::~Warden() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Warden::tell(pid_t message) {
  write_fully(pipe_.write.get(), reinterpret_cast<const char*>(&message), sizeof(message));
}

}  // namespace fullshard::launcher
