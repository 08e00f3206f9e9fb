#include "fullshard/base/log.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace fullshard::base {

void warn(std::string_view message) {
  // One write, so that lines of several ranks do not interleave.
  const std::string line = fmt::format("fullshard: warning: {}\n", message);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace fullshard::base
