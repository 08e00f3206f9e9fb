#include "comm/shared/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace fullshard::comm::shared {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                base::Duration timeout) {
  constexpr std::int64_t kBillion = 1'000'000'000;
  timespec relative{};
  relative.tv_sec = static_cast<std::time_t>(timeout.count() / kBillion);
  relative.tv_nsec = static_cast<long>(timeout.count() % kBillion);
  // Every outcome (woken, changed, interrupted, timed out) means the same here: look again.
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &relative, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace fullshard::comm::shared
