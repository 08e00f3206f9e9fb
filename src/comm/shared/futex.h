#pragma once

#include <atomic>
#include <cstdint>

#include "fullshard/base/deadline.h"

namespace fullshard::comm::shared {

/// Sleeps until the word is woken, differs from `expected`, or `timeout` has passed; may also
/// return early. Works between processes that map the same memory.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                base::Duration timeout);

/// Wakes everyone who sleeps on the word.
void futex_wake_all(std::atomic<std::uint32_t>& word);

}  // namespace fullshard::comm::shared
