#include "launcher/support.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <thread>

namespace fullshard::launcher {

std::string TestFolder::read(const std::string& name) const {
  std::ostringstream text;
  text << std::ifstream(path(name)).rdbuf();
  std::string result = text.str();
  if (result.ends_with('\n')) result.pop_back();
  return result;
}

LaunchOptions TestFolder::shell(int nproc, const std::string& script) const {
  LaunchOptions options;
  options.nproc = nproc;
  options.command = {"sh", "-c", script};
  options.environment = {{"DIR", folder_.path()}, {"CHILD", LAUNCHER_CHILD}};
  return options;
}

void wait_until(const std::function<bool()>& condition, const std::string& what) {
  const auto deadline = base::Deadline::after(std::chrono::minutes(1));
  while (!condition()) {
    ASSERT_FALSE(deadline.passed()) << "waited in vain for " << what;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Outcome run(const LaunchOptions& options) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Outcome outcome{};
  outcome.exit_code = launch(options);
  outcome.err = ::testing::internal::GetCapturedStderr();
  outcome.out = ::testing::internal::GetCapturedStdout();
  return outcome;
}

pid_t launch_apart(const LaunchOptions& options, const std::string& stderr_path, int ignored) {
  const pid_t process = ::fork();
  if (process != 0) return process;
  for (const int signal : {SIGINT, SIGHUP}) {  // which a shell may have had the tests ignore
    ::signal(signal, signal == ignored ? SIG_IGN : SIG_DFL);
  }
  ::dup2(::open(stderr_path.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
  ::_exit(launch(options));
}

int wait_for(pid_t process) {
  int status = 0;
  ::waitpid(process, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

bool alive(pid_t process) {
  std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(stat, text);
  const std::size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text.substr(name_end + 2, 1) != "Z";
}

}  // namespace fullshard::launcher
