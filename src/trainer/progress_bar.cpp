#include "trainer/progress_bar.h"

#include <fmt/format.h>

#include <algorithm>

#include "trainer/text.h"

namespace fullshard::trainer {
namespace {

constexpr int kLongestBar = 40;
constexpr int kShortestBar = 8;

std::string bar(double share, int width, bool colour) {
  const auto full = static_cast<std::size_t>(share * width);
  const std::string done(full, '=');
  const std::string rest(static_cast<std::size_t>(width) - full, '-');
  return colour ? fmt::format("\x1b[32m{}\x1b[2m{}\x1b[0m", done, rest) : done + rest;
}

}  // namespace

std::string progress_bar(const Progress& progress, int columns, bool colour) {
  const auto done = static_cast<double>(progress.done);
  const auto total = static_cast<double>(progress.total);
  const std::string left =
      progress.done == 0 ? "?" : clock_time(progress.seconds / done * (total - done));
  const std::string text =
      fmt::format("{:3.0f}%  {}/{} steps  loss {:.3f}  {} left", 100 * done / total,
                  grouped(progress.done), grouped(progress.total), progress.loss, left);
  // One column stays free: a full line would make some terminals begin another.
  const int room = columns - 1 - static_cast<int>(text.size());
  const int width = std::min(kLongestBar, room - 3);
  if (width < kShortestBar) {
    return text.substr(0, static_cast<std::size_t>(std::max(0, columns - 1)));
  }
  return fmt::format("[{}] {}", bar(done / total, width, colour), text);
}

}  // namespace fullshard::trainer
