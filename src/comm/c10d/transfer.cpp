#include "comm/c10d/transfer.h"

#include <exception>
#include <utility>

namespace fullshard::comm::c10d {

void Transfer::send(int to, const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  require_going_on();
  try {
    add(to, link_.send(to, data, bytes, tag_));
  } catch (const std::exception&) {
    throw ConnectionLost{to};
  }
  if (counter_ != nullptr && (*counted_)[static_cast<std::size_t>(to)]) {
    counter_->fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  }
}

void Transfer::count_into(std::atomic<std::int64_t>& counter, const std::vector<bool>& whom) {
  counter_ = &counter;
  counted_ = &whom;
}

void Transfer::recv(int from, void* data, std::size_t bytes) {
  if (bytes == 0) return;
  require_going_on();
  try {
    add(from, link_.recv(from, data, bytes, tag_));
  } catch (const std::exception&) {
    throw ConnectionLost{from};
  }
}

void Transfer::require_going_on() {
  const std::lock_guard lock(mutex_);
  if (interrupted_) throw Interrupted{-1};
}

void Transfer::add(int peer, Message message) {
  const std::lock_guard lock(mutex_);
  if (interrupted_) message.interrupt();
  entries_.push_back({peer, std::move(message)});
  ++posted_;
}

void Transfer::finish(std::size_t count) {
  while (finished_ < count) {
    std::unique_lock lock(mutex_);
    Entry first = entries_.front();
    if (interrupted_) throw Interrupted{first.peer};
    lock.unlock();
    waited_for_.store(first.peer, std::memory_order_relaxed);
    try {
      if (!first.message.wait()) throw Interrupted{first.peer};
    } catch (const std::exception&) {
      throw ConnectionLost{first.peer};
    }
    lock.lock();
    entries_.pop_front();
    ++finished_;
  }
  waited_for_.store(-1, std::memory_order_relaxed);
}

void Transfer::interrupt() noexcept {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  for (Entry& entry : entries_) entry.message.interrupt();
}

void Transfer::withdraw() {
  std::deque<Entry> entries;
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  entries.swap(entries_);
}

}  // namespace fullshard::comm::c10d
