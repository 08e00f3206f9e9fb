#pragma once

#include <span>
#include <vector>

namespace fullshard::bench {

/// Several measurements of one quantity.
struct Spread {
  double median = 0;
  double low = 0;
  double high = 0;
};

/// The middle value, or the mean of the two middle ones. Throws base::Error(kInvalidArgument) for
/// no values.
double median(std::span<const double> values);

/// Median, lowest and highest; throws as median() does.
Spread spread(std::span<const double> values);

/// above[i] / below[i]: measurements taken in turn are compared pair by pair, so that a machine
/// that slows down for a while slows both sides of a ratio. Throws base::Error(kInvalidArgument)
/// for lists of different lengths and for a `below` that is not above 0.
std::vector<double> ratios(std::span<const double> above, std::span<const double> below);

}  // namespace fullshard::bench
