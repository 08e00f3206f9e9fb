#include "bench/refuse.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "fullshard/base/error.h"

namespace fullshard::bench {

void refuse(const std::string& message) { throw base::Error(base::ErrorCode::kUsage, message); }

void require_between(const char* flag, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return;
  refuse(fmt::format("--{}: found {}; expected an integer from {} to {}", flag, value, low, high));
}

void require_one_of(const char* flag, const std::string& value,
                    const std::vector<std::string>& known) {
  if (std::ranges::find(known, value) != known.end()) return;
  refuse(
      fmt::format("--{}: found \"{}\"; expected one of {}", flag, value, fmt::join(known, ", ")));
}

}  // namespace fullshard::bench
