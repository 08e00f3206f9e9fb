#pragma once

#include <fmt/format.h>

#include <atomic>

#include "fullshard/base/error.h"

namespace fullshard::comm::shared {

/// Refuses a second thread of a rank in a call on a group while it lives.
class BusyScope {
 public:
  /// Throws base::Error kMisuse when `busy` is set. `in_words()` names the call that is refused,
  /// and is asked only then.
  template <typename InWords>
  BusyScope(std::atomic<bool>& busy, const InWords& in_words) : busy_(busy) {
    if (!busy_.exchange(true, std::memory_order_acquire)) return;
    throw base::Error(
        base::ErrorCode::kMisuse,
        fmt::format("{} was called while another thread is in a call on the same group; one "
                    "thread of a rank may use a group at a time",
                    in_words()));
  }
  ~BusyScope() { busy_.store(false, std::memory_order_release); }
  BusyScope(const BusyScope&) = delete;
  BusyScope& operator=(const BusyScope&) = delete;

 private:
  std::atomic<bool>& busy_;
};

}  // namespace fullshard::comm::shared
