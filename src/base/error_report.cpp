#include "fullshard/base/error_report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>

#include "fullshard/base/deadline.h"
#include "fullshard/base/error.h"

namespace fullshard::base {
namespace {

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

/// The launcher's descriptor, or -1. One that is not open any more is no launcher's.
int launcher_fd() {
  const char* text = std::getenv(kErrorFdVariable);
  if (text == nullptr || *text == '\0') return -1;
  const int fd = std::atoi(text);
  return ::fcntl(fd, F_GETFD) < 0 ? -1 : fd;
}

/// One JSON line. The steady clock is the host's, so the launcher can order what ranks say.
std::string report_line(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  const nlohmann::json report = {
      {"time_ns", Clock::now().time_since_epoch().count()},
      {"code", own != nullptr ? to_string(own->code()) : std::string_view("exception")},
      {"rank", own != nullptr ? own->rank() : -1},
      {"message", error.what()}};
  return report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// The code and the message, as Python shows an exception's type and message.
std::string named_message(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  return own == nullptr ? error.what()
                        : fmt::format("fullshard.{}: {}", to_string(own->code()), error.what());
}

/// What torch.distributed.elastic's record_exception() would write. Of the rank whose time stamp is
/// the earliest, its agent shows what should be Python's stack: here that is the message as well.
/// A file that cannot be written changes nothing.
void write_elastic_error_file(const std::exception& error) {
  const char* path = std::getenv(kElasticErrorFileVariable);
  if (path == nullptr || *path == '\0') return;
  const std::string message = named_message(error);
  const std::string now = fmt::format("{}", std::time(nullptr));
  const nlohmann::json report = {
      {"message",
       {{"message", message}, {"extraInfo", {{"py_callstack", message}, {"timestamp", now}}}}}};
  const std::string text = report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return;
  write_all(fd, text);
  ::close(fd);
}

}  // namespace

void report_error(const std::exception& error) noexcept {
  try {
    write_elastic_error_file(error);
    const int fd = launcher_fd();
    if (fd >= 0 && write_all(fd, report_line(error))) return;
    write_all(STDERR_FILENO, fmt::format("fullshard: {}\n", error.what()));
  } catch (const std::exception&) {
    write_all(STDERR_FILENO, "fullshard: failed, and had no memory left to say why\n");
  }
}

}  // namespace fullshard::base
