#include "launcher/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "launcher/fd.h"

namespace fullshard::launcher {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

/// The child's way to exec. Between fork and exec only async-signal-safe calls are allowed: nothing
/// here may allocate. Returns only when something failed, with errno set.
void become(const SpawnRequest& request, char** argv, char** envp, pid_t parent) {
  if (::setpgid(0, 0) != 0) return;
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return;
  if (::getppid() != parent) ::_exit(1);  // it died before the line above
  // A rank is in the background of the terminal, where `stty tostop` would stop it at a write.
  ::signal(SIGTTOU, SIG_IGN);
  // A rank that does not listen for it yet must not end of it.
  ::signal(SIGUSR2, SIG_IGN);
  if (::dup2(request.stdin_fd, STDIN_FILENO) < 0) return;
  if (request.stdout_fd >= 0 && ::dup2(request.stdout_fd, STDOUT_FILENO) < 0) return;
  if (request.stderr_fd >= 0 && ::dup2(request.stderr_fd, STDERR_FILENO) < 0) return;
  for (const int fd : request.inherited) {
    if (::fcntl(fd, F_SETFD, 0) != 0) return;
  }
  ::sigprocmask(SIG_SETMASK, &request.signal_mask, nullptr);
  ::execvpe(argv[0], argv, envp);
}

/// errno of a child that could not exec, 0 when exec closed the pipe.
int exec_error(int fd) {
  int error = 0;
  ssize_t size = 0;
  do {
    size = ::read(fd, &error, sizeof(error));
  } while (size < 0 && errno == EINTR);
  return size == sizeof(error) ? error : 0;
}

}  // namespace

pid_t spawn(const SpawnRequest& request) {
  const std::vector<char*> argv = pointers(request.command);
  const std::vector<char*> envp = pointers(request.environment);
  Pipe status = make_pipe(false);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) fail_errno("start another process");
  if (child == 0) {
    become(request, const_cast<char**>(argv.data()), const_cast<char**>(envp.data()), parent);
    const int error = errno;
    write_fully(status.write.get(), reinterpret_cast<const char*>(&error), sizeof(error));
    ::_exit(127);
  }
  status.write.reset();
  const int error = exec_error(status.read.get());
  if (error == 0) return child;
  ::waitpid(child, nullptr, 0);
  errno = error;
  fail_errno(fmt::format("run '{}'", request.command.front()));
}

}  // namespace fullshard::launcher
