#include "fullshard/data/permutation.h"

#include <bit>

#include "fullshard/base/check.h"

namespace fullshard::data {

std::uint64_t mix_bits(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

Permutation order_of_epoch(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  return {size, mix_bits(seed) ^ mix_bits(~static_cast<std::uint64_t>(epoch))};
}

Permutation::Permutation(std::int64_t size, std::uint64_t key) : size_(size) {
  FULLSHARD_CHECK_LE(1, size);
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(size) - 1));
  half_bits_ = (bits + 1) / 2;
  std::uint64_t state = key;
  for (auto& round_key : round_keys_) round_key = state = mix_bits(state);
}

std::uint64_t Permutation::encrypt(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (const std::uint64_t key : round_keys_) {
    const std::uint64_t mixed = left ^ (mix_bits(right ^ key) & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  auto value = static_cast<std::uint64_t>(index);
  do {
    value = encrypt(value);
  } while (value >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value);
}

}  // namespace fullshard::data
