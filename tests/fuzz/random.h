#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace fullshard::fuzz {

/// Choices from a seed, the same with every standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// From `low` to `high`, both included.
  int between(int low, int high) {
    const auto span = static_cast<std::uint64_t>(high - low + 1);
    return low + static_cast<int>(engine_() % span);
  }

  bool one_in(int count) { return between(1, count) == 1; }

  template <typename T>
  const T& of(const std::vector<T>& choices) {
    return choices[static_cast<std::size_t>(between(0, static_cast<int>(choices.size()) - 1))];
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace fullshard::fuzz
