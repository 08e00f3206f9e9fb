#include "cli/placement.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "fullshard/base/error.h"

namespace fullshard::cli {
namespace {

std::optional<int> leading_integer(std::string_view text, bool whole) {
  int number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || (whole && stop != text.data() + text.size())) return std::nullopt;
  return number;
}

[[noreturn]] void fail(const std::string& message) {
  throw base::Error(base::ErrorCode::kConfiguration, message);
}

/// An integer from `low` up, or nothing when the variable is not set.
std::optional<int> variable(const char* name, int low) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  const std::optional<int> number = leading_integer(text, true);
  if (!number || *number < low) {
    fail(fmt::format("environment variable {}: found \"{}\"; expected an integer, {} or more", name,
                     text, low));
  }
  return number;
}

}  // namespace

std::optional<Placement> placement_from_environment() {
  const std::optional<int> rank = variable("RANK", 0);
  if (!rank) return std::nullopt;
  const std::optional<int> world = variable("WORLD_SIZE", 1);
  if (!world) {
    fail(
        fmt::format("environment variable RANK is {}, but WORLD_SIZE is not set; a launcher sets "
                    "both, and neither is set to start a job of its own",
                    *rank));
  }
  if (*rank >= *world) {
    fail(fmt::format("environment variable RANK is {}, but WORLD_SIZE {} has ranks 0 to {}", *rank,
                     *world, *world - 1));
  }
  return Placement{.world_size = *world,
                   .local_size = variable("LOCAL_WORLD_SIZE", 1).value_or(*world)};
}

int threads_from_environment() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  // OpenMP allows a list, one number a nesting level; the first is what counts here.
  return text == nullptr ? 0 : std::max(0, leading_integer(text, false).value_or(0));
}

}  // namespace fullshard::cli
