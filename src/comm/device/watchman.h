#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "fullshard/base/deadline.h"

namespace fullshard::comm::device {

/// Watches an operation that a device works on, which by itself would never end when another rank
/// is gone. While one goes on, a thread looks every few milliseconds whether it can still end well.
class Watchman {
 public:
  struct Duties {
    std::function<void()> look;      ///< throws when the operation cannot end well any more
    std::function<void()> time_out;  ///< throws; called when the deadline has passed
    /// Makes the operation end; called once after either threw. May block: only the destructor
    /// waits for it.
    std::function<void()> interrupt;
  };

  explicit Watchman(Duties duties);
  /// Once this has returned, no duty is being done.
  ~Watchman();
  Watchman(const Watchman&) = delete;
  Watchman& operator=(const Watchman&) = delete;

  void begin(base::Deadline deadline);

  /// Once this has returned, no duty is being done but perhaps interrupt. Throws what a duty threw
  /// since begin().
  void end();

 private:
  void run();
  bool inspect();

  Duties duties_;
  std::mutex mutex_;  // guards what follows; held while on duty, but for interrupt
  std::condition_variable changed_;
  std::optional<base::Deadline> deadline_;
  std::exception_ptr trouble_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace fullshard::comm::device
