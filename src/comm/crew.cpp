#include "comm/crew.h"

#include <system_error>

namespace fullshard::comm {

Crew::Crew(int helpers) {
  helpers_.reserve(static_cast<std::size_t>(helpers));
  try {
    for (int i = 0; i < helpers; ++i) helpers_.emplace_back([this] { help(); });
  } catch (const std::system_error&) {
    // No more threads to be had: those there are, and the callers, do the work.
  }
}

Crew::~Crew() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  work_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Crew::run(int parts, const std::function<void(int)>& body) {
  Round round{.body = body, .parts = parts};
  std::unique_lock lock(mutex_);
  if (parts > 1) {
    Round** last = &first_;
    while (*last != nullptr) last = &(*last)->later;
    *last = &round;
    work_.notify_all();
  }
  while (round.next < round.parts) take_part(round, lock);
  ended_.wait(lock, [&] { return round.ended == round.parts; });
}

void Crew::help() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return closing_ || first_ != nullptr; });
    if (first_ == nullptr) return;
    take_part(*first_, lock);
  }
}

// The round ends, and with it its memory, only after its last part was counted.
void Crew::take_part(Round& round, std::unique_lock<std::mutex>& lock) {
  const int part = round.next++;
  if (round.next == round.parts) {
    Round** at = &first_;
    while (*at != nullptr && *at != &round) at = &(*at)->later;
    if (*at != nullptr) *at = round.later;
  }
  lock.unlock();
  round.body(part);
  lock.lock();
  if (++round.ended == round.parts) ended_.notify_all();
}

}  // namespace fullshard::comm
