#include "trainer/text.h"

#include <fmt/format.h>

#include <cmath>

namespace fullshard::trainer {

std::string grouped(std::int64_t number) {
  std::string digits = fmt::format("{}", number);
  const std::size_t first = digits.front() == '-' ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

std::string clock_time(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  const std::int64_t minutes = whole / 60;
  if (minutes < 60) return fmt::format("{}:{:02}", minutes, whole % 60);
  return fmt::format("{}:{:02}:{:02}", minutes / 60, minutes % 60, whole % 60);
}

std::string duration(double seconds) {
  if (seconds < 1) return fmt::format("{:.2f} s", seconds);
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const std::int64_t whole = std::llround(seconds);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

}  // namespace fullshard::trainer
