#include "fullshard/bench/statistics.h"

#include <fmt/format.h>

#include <algorithm>

#include "fullshard/base/error.h"

namespace fullshard::bench {
namespace {

[[noreturn]] void reject(const std::string& message) {
  throw base::Error(base::ErrorCode::kInvalidArgument, message);
}

}  // namespace

double median(std::span<const double> values) {
  if (values.empty()) reject("there is no median of no values");
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  const std::size_t middle = sorted.size() / 2;
  if (sorted.size() % 2 == 1) return sorted[middle];
  return (sorted[middle - 1] + sorted[middle]) / 2;
}

Spread spread(std::span<const double> values) {
  const double middle = median(values);
  const auto [low, high] = std::ranges::minmax(values);
  return {middle, low, high};
}

std::vector<double> ratios(std::span<const double> above, std::span<const double> below) {
  if (above.size() != below.size()) {
    reject(fmt::format("{} and {} measurements do not make pairs", above.size(), below.size()));
  }
  std::vector<double> result;
  for (std::size_t i = 0; i < above.size(); ++i) {
    if (!(below[i] > 0)) reject(fmt::format("no ratio to {}; above 0 is needed", below[i]));
    result.push_back(above[i] / below[i]);
  }
  return result;
}

}  // namespace fullshard::bench
