#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "comm/c10d/link.h"

namespace fullshard::comm::c10d {

/// Thrown by a Transfer after interrupt(). `peer` is the rank whose message was waited for, -1 when
/// none was.
struct Interrupted {
  int peer;
};

/// Thrown by a Transfer when the connection to `peer` is broken.
struct ConnectionLost {
  int peer;
};

/// The messages of one operation. One thread posts and waits; interrupt() comes from any thread.
/// With the object every message is withdrawn: the backend touches the caller's memory no more.
class Transfer {
 public:
  Transfer(Link& link, int tag) : link_(link), tag_(tag) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Start a message; nothing happens for no bytes, which the other side knows to be none. Throw
  /// Interrupted or ConnectionLost.
  void send(int to, const void* data, std::size_t bytes);
  void recv(int from, void* data, std::size_t bytes);

  /// From now on adds to `counter` the bytes that are sent to ranks whose entry in `whom` is set.
  void count_into(std::atomic<std::int64_t>& counter, const std::vector<bool>& whom);

  /// Messages started so far; the argument of finish().
  std::size_t posted() const { return posted_; }

  /// Waits for the first `count` messages, in the order of their starting. Throws Interrupted or
  /// ConnectionLost.
  void finish(std::size_t count);

  /// Waits for all of them.
  void finish() { finish(posted_); }

  /// The rank whose message is waited for now, -1 when none is. Any thread may call.
  int waited_for() const { return waited_for_.load(std::memory_order_relaxed); }

  /// Ends the wait that is going on and all later ones.
  void interrupt() noexcept;

  /// Lets go of all messages.
  void withdraw();

 private:
  struct Entry {
    int peer;
    Message message;
  };
  void add(int peer, Message message);
  void require_going_on();

  Link& link_;
  int tag_;
  std::atomic<std::int64_t>* counter_ = nullptr;
  const std::vector<bool>* counted_ = nullptr;
  std::size_t posted_ = 0;
  std::size_t finished_ = 0;
  std::atomic<int> waited_for_ = -1;
  std::mutex mutex_;  // guards what follows
  std::deque<Entry> entries_;
  bool interrupted_ = false;
};

}  // namespace fullshard::comm::c10d
