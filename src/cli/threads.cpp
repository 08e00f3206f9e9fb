#include "cli/threads.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace fullshard::cli {

int threads_from_environment() {
  const char* variable = std::getenv("OMP_NUM_THREADS");
  if (variable == nullptr) return 0;
  // OpenMP allows a list, one number a nesting level; the first is what counts here.
  const std::string_view text = variable;
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() ? std::max(0, number) : 0;
}

}  // namespace fullshard::cli
