#include "bench/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fullshard::bench {

Progress::Progress(const BenchConsole& console, std::vector<std::string> runs)
    : console_(console), runs_(std::move(runs)) {}

void Progress::start(const std::string& what) {
  what_ = what;
  start_ = base::Clock::now();
  tick();
}

void Progress::tick() {
  if (!console_.redraw) return;
  draw(fmt::format("[{}/{}] {}: {} so far{}", present_ + 1, runs_.size(), what_,
                   rough_time(elapsed()), left()));
}

void Progress::finish(const std::string& outcome) {
  const double seconds = elapsed();
  seconds_[runs_[present_]] = seconds;
  ++present_;
  start_ = base::Clock::now();
  draw(fmt::format("[{}/{}] {}: {} ({}{})", present_, runs_.size(), what_, outcome,
                   rough_time(seconds), left()));
  std::fputc('\n', console_.progress);
  std::fflush(console_.progress);
  line_open_ = false;
}

void Progress::note(const std::string& text) {
  draw(fmt::format("[{}/{}] {}: {}\n", present_ + 1, runs_.size(), what_, text));
  line_open_ = false;
}

void Progress::interrupt() {
  if (line_open_) std::fputc('\n', console_.progress);
  line_open_ = false;
}

std::string Progress::left() const {
  double seconds = 0;
  for (std::size_t i = present_; i < runs_.size(); ++i) {
    const auto known = seconds_.find(runs_[i]);
    if (known == seconds_.end()) return "";
    seconds += known->second;
  }
  seconds = std::max(0.0, seconds - elapsed());
  return present_ == runs_.size() ? "" : fmt::format(", about {} left", rough_time(seconds));
}

void Progress::draw(const std::string& line) {
  // Back to the line's start, and nothing left over of a longer one.
  if (console_.redraw) std::fputs("\r\x1b[K", console_.progress);
  std::fputs(line.c_str(), console_.progress);
  std::fflush(console_.progress);
  line_open_ = true;
}

std::string rough_time(double seconds) {
  const auto whole = std::lround(seconds);
  if (whole < 120) return fmt::format("{} s", whole);
  const long minutes = (whole + 30) / 60;
  if (minutes < 120) return fmt::format("{} min", minutes);
  return fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

}  // namespace fullshard::bench
