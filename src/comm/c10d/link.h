#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstddef>
#include <mutex>
#include <vector>

namespace fullshard::comm::c10d {

/// A message between two ranks that is under way. The bytes it reads or writes belong to the caller
/// and must stay until the message, and with it every copy, is gone; afterwards the backend touches
/// them no more.
class Message {
 public:
  explicit Message(c10::intrusive_ptr<::c10d::Work> work) : work_(std::move(work)) {}

  /// Returns when the bytes have come, or when those to send can be changed again. False after
  /// interrupt(). Throws whatever the backend throws when the connection is broken.
  bool wait();

  /// Ends a wait() that is going on in another thread, or the next one.
  void interrupt() noexcept;

 private:
  c10::intrusive_ptr<::c10d::Work> work_;
};

/// The connections of one rank to the others of its group. Of a backend only send() and recv() of
/// host memory are used, matched by rank and tag: messages of one tag between two ranks arrive in
/// the order of their sending. Nothing here blocks. Any thread may call.
class Link {
 public:
  explicit Link(c10::intrusive_ptr<::c10d::Backend> backend) : backend_(std::move(backend)) {}

  /// Starts sending. Throws whatever the backend throws when the connection is broken.
  Message send(int to, const void* data, std::size_t bytes, int tag);

  /// Starts receiving exactly what the other rank sends under that tag, at most `bytes`.
  Message recv(int from, void* data, std::size_t bytes, int tag);

 private:
  std::mutex mutex_;  // backends count their calls without a lock; a leaf in the order of locks
  c10::intrusive_ptr<::c10d::Backend> backend_;
};

/// Keeps the SIGPIPE of writing to a closed connection from this thread, and from threads that it
/// starts meanwhile.
class NoSigpipeScope {
 public:
  NoSigpipeScope();
  ~NoSigpipeScope();
  NoSigpipeScope(const NoSigpipeScope&) = delete;
  NoSigpipeScope& operator=(const NoSigpipeScope&) = delete;

 private:
  bool pending_before_ = false;
  bool blocked_before_ = false;
};

}  // namespace fullshard::comm::c10d
