#include "fullshard/base/log.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace fullshard::base {
namespace {

// One write, so that lines of several ranks do not interleave.
void write_line(const std::string& line) {
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

void warn(std::string_view message) {
  write_line(fmt::format("fullshard: warning: {}\n", message));
}

void inform(std::string_view message) { write_line(fmt::format("fullshard: {}\n", message)); }

}  // namespace fullshard::base
