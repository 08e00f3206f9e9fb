#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fullshard::layout {

/// What a step costs one rank, and what its memory has room for.
struct RankLoad {
  double fixed_seconds = 0;        ///< whatever it owns
  double seconds_per_element = 0;  ///< of each element that it owns
  double most_elements = 0;        ///< that it can own
};

/// How many of `elements` each rank should own for the slowest one to be as quick as can be: all
/// that own something, and have room for more, take equally long. Fractions of elements, which add
/// up to `elements`; relative to each other they are weights of a UnitLayout.
///
/// Throws base::Error(kInvalidArgument) where the ranks have no room for all together, or a number
/// is negative or not finite (most_elements may be infinite).
std::vector<double> balance(std::span<const RankLoad> ranks, double elements);

/// What ranks should own for none to have more than `most`, with as little moved as can be: what is
/// too much goes to the others in equal parts, as far as they have room. Throws
/// base::Error(kInvalidArgument) where there is not room for all.
std::vector<double> shed(std::span<const double> owned, std::span<const double> most);

/// Seconds of the slowest rank when they own `owned`.
double slowest(std::span<const RankLoad> ranks, std::span<const double> owned);

}  // namespace fullshard::layout
