#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

namespace fullshard::comm::shared {

/// A value in shared memory that one rank writes and others may read at any time, even while it is
/// being written: a sequence lock over atomic words. All zero bytes are a valid, empty object.
///
/// Each word is stored with release order after the version turned odd, and loaded with acquire
/// order before the version is read again; so a reader that saw any new word also sees the odd (or
/// a later) version and retries.
template <typename T>
requires std::is_trivially_copyable_v<T>
class Published {
 public:
  /// Only the owning rank may call this, one thread at a time.
  void store(const T& value) {
    std::array<std::uint64_t, kWords> copy{};
    std::memcpy(copy.data(), &value, sizeof(T));
    const std::uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    for (std::size_t i = 0; i < kWords; ++i) words_[i].store(copy[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  /// The value, or nothing when it was never stored or its writer stays in the middle of a store
  /// (it may have been killed there).
  std::optional<T> load() const {
    for (int attempt = 0; attempt < 1000; ++attempt) {
      const std::uint64_t before = version_.load(std::memory_order_acquire);
      if (before == 0) return std::nullopt;
      std::array<std::uint64_t, kWords> copy;
      for (std::size_t i = 0; i < kWords; ++i) copy[i] = words_[i].load(std::memory_order_acquire);
      if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) {
        T value;
        std::memcpy(static_cast<void*>(&value), copy.data(), sizeof(T));
        return value;
      }
    }
    return std::nullopt;
  }

 private:
  static constexpr std::size_t kWords = (sizeof(T) + 7) / 8;
  std::atomic<std::uint64_t> version_;
  std::array<std::atomic<std::uint64_t>, kWords> words_;
};

}  // namespace fullshard::comm::shared
