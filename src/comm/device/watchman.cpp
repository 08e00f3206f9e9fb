#include "comm/device/watchman.h"

#include <algorithm>
#include <utility>

namespace fullshard::comm::device {
namespace {

constexpr base::Duration kRound = std::chrono::milliseconds(5);

}  // namespace

Watchman::Watchman(Duties duties) : duties_(std::move(duties)) {
  thread_ = std::thread([this] { run(); });
}

Watchman::~Watchman() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Watchman::begin(base::Deadline deadline) {
  const std::lock_guard lock(mutex_);
  deadline_ = deadline;
  trouble_ = nullptr;
  changed_.notify_all();
}

void Watchman::end() {
  const std::lock_guard lock(mutex_);
  deadline_.reset();
  if (trouble_) std::rethrow_exception(std::exchange(trouble_, nullptr));
}

// Whether the operation can still end well.
bool Watchman::inspect() {
  try {
    duties_.look();
    if (deadline_->passed()) duties_.time_out();
    return true;
  } catch (...) {
    trouble_ = std::current_exception();
    return false;
  }
}

void Watchman::run() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    if (!deadline_ || trouble_) {
      changed_.wait(lock);
      continue;
    }
    // Most operations end before the first look.
    changed_.wait_for(lock, std::min(kRound, deadline_->remaining()));
    if (!deadline_ || trouble_ || closing_ || inspect()) continue;
    lock.unlock();
    duties_.interrupt();
    lock.lock();
  }
}

}  // namespace fullshard::comm::device
