#include "comm/processes.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <stdexcept>

namespace fullshard::comm::testing {
namespace {

int run_child(const std::function<void()>& body, int text_fd) {
  std::string text;
  try {
    body();
  } catch (const std::exception& error) {
    text = error.what();
  }
  const bool well = text.empty() && !::testing::Test::HasFailure();
  const bool told = write(text_fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  std::fflush(nullptr);
  return well && told ? 0 : 1;
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> buffer{};
  ssize_t bytes = 0;
  while ((bytes = read(fd, buffer.data(), buffer.size())) > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(bytes));
  }
  return text;
}

}  // namespace

Processes::~Processes() {
  for (const Child& child : children_) {
    if (child.pid < 0) continue;
    ::kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
    close(child.text_fd);
  }
}

void Processes::start(const std::function<void()>& body) {
  std::array<int, 2> pipe_ends{};
  if (pipe(pipe_ends.data()) != 0) throw std::runtime_error("pipe failed");
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("fork failed");
  if (pid == 0) {
    close(pipe_ends[0]);
    _exit(run_child(body, pipe_ends[1]));
  }
  close(pipe_ends[1]);
  children_.push_back({pid, pipe_ends[0]});
}

void Processes::kill(int child) const { ::kill(pid(child), SIGKILL); }

Ended Processes::wait(int child) {
  Child& entry = children_[static_cast<std::size_t>(child)];
  Ended ended;
  ended.text = read_all(entry.text_fd);
  int status = 0;
  while (waitpid(entry.pid, &status, 0) < 0 && errno == EINTR) continue;
  close(entry.text_fd);
  entry.pid = -1;
  if (WIFEXITED(status)) ended.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ended.signal = WTERMSIG(status);
  return ended;
}

}  // namespace fullshard::comm::testing
