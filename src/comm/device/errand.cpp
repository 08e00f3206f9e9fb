#include "comm/device/errand.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace fullshard::comm::device {

struct Errand::State {
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  bool ended = false;
  std::exception_ptr error;
};

Errand::Errand(std::function<void()> call) : state_(std::make_shared<State>()) {
  std::thread([state = state_, call = std::move(call)]() mutable {
    std::exception_ptr error;
    try {
      call();
    } catch (...) {
      error = std::current_exception();
    }
    call = nullptr;  // what it kept may take as long to end as itself
    const std::lock_guard lock(state->mutex);
    state->error = error;
    state->ended = true;
    state->changed.notify_all();
  }).detach();
}

bool Errand::ended_within(base::Duration patience) const {
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_for(lock, patience, [&] { return state_->ended; })) return false;
  if (state_->error) std::rethrow_exception(state_->error);
  return true;
}

}  // namespace fullshard::comm::device
