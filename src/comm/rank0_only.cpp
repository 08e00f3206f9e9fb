#include "fullshard/comm/rank0_only.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "fullshard/base/error.h"

namespace fullshard::comm {
namespace {

using base::Error;
using base::ErrorCode;

// A sign of life for a long timeout need not come more often.
constexpr base::Duration kLongestSilence = std::chrono::seconds(5);

/// What rank 0 says again and again; equal bytes on all ranks.
struct News {
  enum class State : std::int32_t { kWorking, kDone, kFailed };
  State state = State::kWorking;
  std::int32_t code = 0;        ///< of a failure
  std::int64_t text_bytes = 0;  ///< likewise; the text follows
};

void share(World& world, void* data, std::size_t bytes, const OpTag& tag) {
  const Buffer buffer{data, static_cast<std::int64_t>(bytes), base::DType::kUInt8};
  world.group().broadcast(buffer, 0, tag).wait();
}

/// Tells the others that this rank works, until stop().
class Heartbeat {
 public:
  Heartbeat(World& world, const OpTag& tag)
      : world_(world), tag_(tag), thread_([this] { run(); }) {}
  ~Heartbeat() { stop(); }
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

  /// Throws what kept it from telling. After stop().
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  bool stopping_after(base::Duration pause) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, pause, [&] { return stopping_; });
  }

  void run() {
    const base::Duration pause = std::min(world_.group().options().timeout / 4, kLongestSilence);
    try {
      while (!stopping_after(pause)) {
        News news;
        share(world_, &news, sizeof(news), tag_);
      }
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  World& world_;
  const OpTag& tag_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool stopping_ = false;
  std::exception_ptr error_;  // written by the thread, read after it has ended
  std::thread thread_;
};

void tell_failure(World& world, ErrorCode code, std::string text, const OpTag& tag) {
  News news{News::State::kFailed, static_cast<std::int32_t>(code),
            static_cast<std::int64_t>(text.size())};
  try {
    share(world, &news, sizeof(news), tag);
    share(world, text.data(), text.size(), tag);
  } catch (const Error&) {
    // The others have an error already.
  }
}

// Called while the exception is handled; rethrows it.
[[noreturn]] void pass_on_exception(World& world, const OpTag& tag) {
  try {
    throw;
  } catch (const Error& error) {
    tell_failure(world, error.code(), error.what(), tag);
    throw;
  } catch (const std::exception& error) {
    tell_failure(world, ErrorCode::kPeerLost, error.what(), tag);
    throw;
  } catch (...) {
    tell_failure(world, ErrorCode::kPeerLost, "an exception that is no std::exception", tag);
    throw;
  }
}

void do_work(World& world, const OpTag& tag, const std::function<void()>& work) {
  Heartbeat heartbeat(world, tag);
  try {
    work();
  } catch (...) {
    heartbeat.stop();
    pass_on_exception(world, tag);
  }
  heartbeat.stop();
  heartbeat.rethrow();
  News done{News::State::kDone};
  share(world, &done, sizeof(done), tag);
}

void wait_for_work(World& world, std::string_view what, const OpTag& tag) {
  News news;
  do {
    share(world, &news, sizeof(news), tag);
  } while (news.state == News::State::kWorking);
  if (news.state == News::State::kDone) return;
  std::string text(static_cast<std::size_t>(news.text_bytes), '\0');
  share(world, text.data(), text.size(), tag);
  throw Error(static_cast<ErrorCode>(news.code),
              fmt::format("rank {}: rank 0 failed in '{}': {}", world.rank(), what, text), 0);
}

}  // namespace

void rank0_only(World& world, std::string_view what, const std::function<void()>& work) {
  if (world.size() == 1) return work();
  const OpTag tag{fmt::format("rank 0 only: {}", what), -1};
  if (world.rank() == 0) {
    do_work(world, tag, work);
  } else {
    wait_for_work(world, what, tag);
  }
}

}  // namespace fullshard::comm
