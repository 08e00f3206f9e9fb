#pragma once

#include <array>
#include <cstdint>

namespace fullshard::data {

/// A pseudo-random order of 0..size-1 that a key picks, without a table: any element is found in
/// constant time and memory, so an epoch of a billion samples costs as little as one of ten.
///
/// A balanced Feistel network (Luby and Rackoff, 1988) over the smallest even number of bits that
/// holds `size` permutes a domain of less than 4 * size; values beyond the size are sent through it
/// again until they land inside ("cycle walking", Black and Rogaway, 2002).
class Permutation {
 public:
  /// size >= 1.
  Permutation(std::int64_t size, std::uint64_t key);

  std::int64_t size() const { return size_; }

  /// Where element `index`, 0 <= index < size, of the order lies.
  std::int64_t operator()(std::int64_t index) const;

 private:
  static constexpr int kRounds = 6;
  std::uint64_t encrypt(std::uint64_t value) const;

  std::int64_t size_;
  int half_bits_;
  std::array<std::uint64_t, kRounds> round_keys_;
};

/// The order of `size` >= 1 samples in an epoch >= 0 of a run with this seed.
Permutation order_of_epoch(std::int64_t size, std::uint64_t seed, std::int64_t epoch);

/// One step of splitmix64 (Steele, Lea and Flood, 2014): a bijection that mixes all 64 bits.
std::uint64_t mix_bits(std::uint64_t value);

}  // namespace fullshard::data
