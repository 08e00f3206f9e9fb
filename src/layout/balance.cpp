#include "fullshard/layout/balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "fullshard/base/error.h"

namespace fullshard::layout {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw base::Error(base::ErrorCode::kInvalidArgument, message);
}

void check(std::span<const RankLoad> ranks, double elements) {
  double room = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankLoad& load = ranks[rank];
    const bool is_finite =
        std::isfinite(load.fixed_seconds) && std::isfinite(load.seconds_per_element);
    if (!is_finite || load.fixed_seconds < 0 || load.seconds_per_element < 0 ||
        !(load.most_elements >= 0)) {
      refuse(
          fmt::format("the load of rank {} is {} s and {} s an element with room for {}; none "
                      "may be negative",
                      rank, load.fixed_seconds, load.seconds_per_element, load.most_elements));
    }
    room += load.most_elements;
  }
  if (room < elements) {
    refuse(fmt::format("the ranks have room for {:.0f} elements together, and there are {:.0f}",
                       room, elements));
  }
}

// An element that costs nothing would leave it open who takes how many.
constexpr double kLeastSeconds = 1e-15;

double owned_within(const RankLoad& load, double seconds) {
  const double each = std::max(load.seconds_per_element, kLeastSeconds);
  return std::clamp((seconds - load.fixed_seconds) / each, 0.0, load.most_elements);
}

double owned_within(std::span<const RankLoad> ranks, double seconds) {
  return std::accumulate(ranks.begin(), ranks.end(), 0.0, [&](double sum, const RankLoad& load) {
    return sum + owned_within(load, seconds);
  });
}

// The least time in which the ranks can do with all elements, from above.
double least_seconds(std::span<const RankLoad> ranks, double elements) {
  double enough = 1e-9;
  while (owned_within(ranks, enough) < elements && std::isfinite(enough)) enough *= 2;
  double too_little = 0;
  for (int round = 0; round < 200; ++round) {
    const double middle = too_little + (enough - too_little) / 2;
    (owned_within(ranks, middle) < elements ? too_little : enough) = middle;
  }
  return enough;
}

}  // namespace

std::vector<double> balance(std::span<const RankLoad> ranks, double elements) {
  check(ranks, elements);
  const double seconds = least_seconds(ranks, elements);
  std::vector<double> owned;
  for (const RankLoad& load : ranks) owned.push_back(owned_within(load, seconds));
  const double sum = std::accumulate(owned.begin(), owned.end(), 0.0);
  // The bisection ends above by as little as its last step; taking that off keeps to all limits.
  for (double& share : owned) share *= sum > 0 ? elements / sum : 0;
  return owned;
}

std::vector<double> shed(std::span<const double> owned, std::span<const double> most) {
  std::vector<double> after(owned.begin(), owned.end());
  double excess = 0;
  for (std::size_t rank = 0; rank < after.size(); ++rank) {
    excess += std::max(after[rank] - most[rank], 0.0);
    after[rank] = std::min(after[rank], most[rank]);
  }
  const double least = 1e-9 * std::accumulate(owned.begin(), owned.end(), 0.0);
  while (excess > least) {
    double with_room = 0;
    for (std::size_t rank = 0; rank < after.size(); ++rank) with_room += after[rank] < most[rank];
    if (with_room == 0) refuse(fmt::format("there is no room for {:.0f} elements", excess));
    const double each = excess / with_room;
    for (std::size_t rank = 0; rank < after.size(); ++rank) {
      const double taken = std::min(each, most[rank] - after[rank]);
      after[rank] += taken;
      excess -= taken;
    }
  }
  return after;
}

double slowest(std::span<const RankLoad> ranks, std::span<const double> owned) {
  double seconds = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankLoad& load = ranks[rank];
    seconds = std::max(seconds, load.fixed_seconds + load.seconds_per_element * owned[rank]);
  }
  return seconds;
}

}  // namespace fullshard::layout
