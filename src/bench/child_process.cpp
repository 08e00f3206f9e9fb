#include "bench/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <system_error>

#include "fullshard/base/error.h"

namespace fullshard::bench {
namespace {

constexpr base::Duration kGrace = std::chrono::seconds(10);

[[noreturn]] void fail_errno(const std::string& what, int error) {
  throw base::Error(base::ErrorCode::kSystem,
                    fmt::format("cannot {}: {}", what, std::generic_category().message(error)));
}

std::vector<std::string> environment_of(const Invocation& invocation) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const std::string& name : invocation.unset) variables.erase(name);
  for (const auto& [name, value] : invocation.environment) variables[name] = value;
  std::vector<std::string> result;
  result.reserve(variables.size());
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

int memory_file(const char* name) {
  const int fd = ::memfd_create(name, MFD_CLOEXEC);
  if (fd < 0) fail_errno("make memory for a child's output", errno);
  return fd;
}

std::string contents(int fd) {
  std::string text;
  std::array<char, 65536> piece;
  for (ssize_t size = 0;
       (size = ::pread(fd, piece.data(), piece.size(), static_cast<off_t>(text.size()))) > 0;) {
    text.append(piece.data(), static_cast<std::size_t>(size));
  }
  return text;
}

struct Descriptors {
  int output;
  int errors;
  int failure;  ///< closed by exec; gets errno when there is none
};

/// The child's way to exec; only async-signal-safe calls. Returns with errno when it failed.
int become(char** argv, char** envp, const Descriptors& fds, const sigset_t& mask, pid_t parent) {
  if (::setpgid(0, 0) != 0 || ::prctl(PR_SET_PDEATHSIG, SIGTERM) != 0) return errno;
  if (::getppid() != parent) ::_exit(1);  // it died before the line above
  const int null = ::open("/dev/null", O_RDONLY);
  if (null < 0 || ::dup2(null, STDIN_FILENO) < 0) return errno;
  if (::dup2(fds.output, STDOUT_FILENO) < 0 || ::dup2(fds.errors, STDERR_FILENO) < 0) return errno;
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::execvpe(argv[0], argv, envp);
  return errno;
}

/// errno of a child that could not exec, 0 when exec closed the descriptor.
int exec_error(int fd) {
  int error = 0;
  ssize_t size = 0;
  do {
    size = ::read(fd, &error, sizeof(error));
  } while (size < 0 && errno == EINTR);
  return size == sizeof(error) ? error : 0;
}

pid_t start(const Invocation& invocation, int output, int errors, const sigset_t& mask) {
  std::vector<std::string> command = invocation.command;
  std::vector<std::string> environment = environment_of(invocation);
  const std::vector<char*> argv = pointers(command);
  const std::vector<char*> envp = pointers(environment);
  int status[2];
  if (::pipe2(status, O_CLOEXEC) != 0) fail_errno("create a pipe", errno);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    const Descriptors fds{output, errors, status[1]};
    const int error =
        become(const_cast<char**>(argv.data()), const_cast<char**>(envp.data()), fds, mask, parent);
    if (::write(status[1], &error, sizeof(error)) < 0) ::_exit(126);
    ::_exit(127);
  }
  const int fork_error = errno;
  ::close(status[1]);
  const int error = child < 0 ? fork_error : exec_error(status[0]);
  ::close(status[0]);
  if (error == 0) return child;
  if (child > 0) ::waitpid(child, nullptr, 0);
  fail_errno(fmt::format("run '{}'", invocation.command.front()), error);
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

timespec timespec_of(base::Duration duration) {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(duration);
  return {.tv_sec = whole.count(), .tv_nsec = (duration - whole).count()};
}

}  // namespace

HeldSignals::HeldSignals() {
  ::sigemptyset(&held_);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) ::sigaddset(&held_, signal);
  ::sigprocmask(SIG_BLOCK, &held_, &before_);
}

HeldSignals::~HeldSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

ChildProcess::ChildProcess(const Invocation& invocation, const HeldSignals& signals)
    : signals_(signals) {
  output_ = memory_file("stdout");
  errors_ = memory_file("stderr");
  try {
    pid_ = start(invocation, output_, errors_, signals.before());
  } catch (...) {
    ::close(output_);
    ::close(errors_);
    throw;
  }
}

ChildProcess::~ChildProcess() {
  if (!ended_) stop();
  ::close(output_);
  ::close(errors_);
}

bool ChildProcess::wait(base::Duration interval) {
  const auto deadline = base::Deadline::after(interval);
  while (!ended_ && !reap_ended()) {
    const timespec left = timespec_of(deadline.remaining());
    const int signal = ::sigtimedwait(&signals_.held(), nullptr, &left);
    if (signal == SIGINT || signal == SIGTERM) {
      stop();
      throw Stopped{signal};
    }
    if (signal < 0 && errno == EAGAIN) return reap_ended();
  }
  return true;
}

ChildEnd ChildProcess::end() {
  end_.output = contents(output_);
  end_.errors = contents(errors_);
  return std::move(end_);
}

bool ChildProcess::reap_ended() {
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT | WNOHANG) != 0)
    return false;
  if (info.si_pid == 0) return false;
  reap();
  return true;
}

void ChildProcess::reap() {
  // What the child has left behind; before it is reaped, as its number may then be another's.
  ::kill(-pid_, SIGKILL);
  int status = 0;
  rusage usage{};
  ::wait4(pid_, &status, 0, &usage);
  ended_ = true;
  end_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  end_.wall_seconds = base::seconds(base::Clock::now() - start_);
  end_.cpu_seconds = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

void ChildProcess::stop() {
  ::kill(pid_, SIGTERM);
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  const auto deadline = base::Deadline::after(kGrace);
  while (!reap_ended() && !deadline.passed()) {
    const timespec left = timespec_of(deadline.remaining());
    ::sigtimedwait(&child, nullptr, &left);
  }
  if (!ended_) reap();
}

void require_success(const std::string& name, const ChildEnd& end) {
  constexpr std::size_t kShown = 60;  // torchrun's own report takes half of it
  if (end.exit_code == 0) return;
  throw base::Error(base::ErrorCode::kSystem,
                    fmt::format("the run of '{}' ended with exit code {}; the end of its standard "
                                "error:\n{}",
                                name, end.exit_code, last_lines(end.errors, kShown)));
}

std::string last_lines(const std::string& text, std::size_t lines) {
  std::size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  std::size_t begin = end + 1;
  for (; lines > 0 && begin != 0; --lines) {
    const std::size_t before = begin < 2 ? std::string::npos : text.rfind('\n', begin - 2);
    begin = before == std::string::npos ? 0 : before + 1;
  }
  return text.substr(begin, end + 1 - begin);
}

}  // namespace fullshard::bench
