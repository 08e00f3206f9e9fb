#include "fullshard/comm/work.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <utility>

namespace fullshard::comm {

struct Work::State {
  std::function<void()> finish;
  std::function<bool()> ready;  // may be empty
  std::once_flag once;
  std::exception_ptr error;
  std::atomic<bool> done = false;
};

Work::Work(std::function<void()> finish) : Work(std::move(finish), nullptr) {}

Work::Work(std::function<void()> finish, std::function<bool()> ready)
    : state_(std::make_shared<State>()) {
  state_->finish = std::move(finish);
  state_->ready = std::move(ready);
}

void Work::wait() {
  if (!state_) return;
  std::call_once(state_->once, [this] {
    try {
      state_->finish();
    } catch (...) {
      state_->error = std::current_exception();
    }
    state_->finish = nullptr;
    state_->done.store(true, std::memory_order_release);
  });
  if (state_->error) std::rethrow_exception(state_->error);
}

bool Work::done() const {
  if (!state_) return true;
  if (state_->done.load(std::memory_order_acquire)) return !state_->error;
  return state_->ready && state_->ready();
}

}  // namespace fullshard::comm
