#include "fullshard/layout/whole_units.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "fullshard/base/check.h"

namespace fullshard::layout {
namespace {

std::size_t least_loaded_with(std::int64_t bytes, const std::vector<std::int64_t>& loads,
                              const std::vector<double>& weights) {
  std::size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t rank = 0; rank < loads.size(); ++rank) {
    const double weight = weights.empty() ? 1.0 : weights[rank];
    if (!(weight > 0)) continue;
    const double load = static_cast<double>(loads[rank] + bytes) / weight;
    if (load < least) {
      least = load;
      best = rank;
    }
  }
  FULLSHARD_CHECK_LT(least, std::numeric_limits<double>::infinity());
  return best;
}

}  // namespace

std::vector<int> assign_owners(std::span<const std::int64_t> bytes, std::vector<std::int64_t> loads,
                               const std::vector<double>& weights) {
  FULLSHARD_CHECK(weights.empty() || weights.size() == loads.size());
  std::vector<std::size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
  std::vector<int> owners(bytes.size());
  for (const std::size_t unit : order) {
    const std::size_t rank = least_loaded_with(bytes[unit], loads, weights);
    loads[rank] += bytes[unit];
    owners[unit] = static_cast<int>(rank);
  }
  return owners;
}

}  // namespace fullshard::layout
