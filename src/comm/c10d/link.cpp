#include "comm/c10d/link.h"

#include <ATen/ops/from_blob.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <exception>

namespace fullshard::comm::c10d {
namespace {

// Deadlines are kept by whoever waits: when a wait of Gloo times out, it closes all connections,
// before the other ranks could be told why.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365 * 20);

std::vector<at::Tensor> as_tensors(const void* data, std::size_t bytes) {
  return {at::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(bytes)}, at::kByte)};
}

sigset_t only_sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

bool sigpipe_is_pending() {
  sigset_t pending;
  sigemptyset(&pending);
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

bool Message::wait() { return work_->wait(kForever); }

void Message::interrupt() noexcept {
  try {
    work_->abort();
  } catch (const std::exception&) {
    // A backend that cannot interrupt: the wait ends when the connection does.
  }
}

Message Link::send(int to, const void* data, std::size_t bytes, int tag) {
  auto tensors = as_tensors(data, bytes);
  const std::lock_guard lock(mutex_);
  return Message(backend_->send(tensors, to, tag));
}

Message Link::recv(int from, void* data, std::size_t bytes, int tag) {
  auto tensors = as_tensors(data, bytes);
  const std::lock_guard lock(mutex_);
  return Message(backend_->recv(tensors, from, tag));
}

NoSigpipeScope::NoSigpipeScope() : pending_before_(sigpipe_is_pending()) {
  const sigset_t sigpipe = only_sigpipe();
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &sigpipe, &before);
  blocked_before_ = sigismember(&before, SIGPIPE) == 1;
}

NoSigpipeScope::~NoSigpipeScope() {
  if (blocked_before_) return;
  const sigset_t sigpipe = only_sigpipe();
  constexpr timespec kAtOnce{};
  if (!pending_before_ && sigpipe_is_pending()) sigtimedwait(&sigpipe, nullptr, &kAtOnce);
  pthread_sigmask(SIG_UNBLOCK, &sigpipe, nullptr);
}

}  // namespace fullshard::comm::c10d
