#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "comm/shared/pulse.h"
#include "fullshard/base/deadline.h"
#include "fullshard/base/error.h"

namespace fullshard::comm {

/// Keeps this rank's pulse going, and reports a rank whose pulse has stopped: a process that is
/// stopped or starved, or a host that is frozen or cannot be reached any more though no connection
/// broke. Reports failures as well that are known to a group but not to a rank which uses others. A
/// thread of its own does all this, for as long as the object lives.
class PulseWatch {
 public:
  /// `rank` is this one. The thread calls `find_failure` again and again, and `report` once at
  /// most, with what that found or an error kPeerLost that names the rank which has shown nothing
  /// for `timeout`, as long as that is not zero. `report` must not block, nor `find_failure` while
  /// there is none.
  PulseWatch(int rank, shared::Pulse& pulse, base::Duration timeout,
             std::function<std::optional<base::Error>()> find_failure,
             std::function<void(const base::Error&)> report);

  /// In a process that was forked off the one which made it, where its thread is not, does nothing
  /// and leaves what that thread used.
  ~PulseWatch();
  PulseWatch(const PulseWatch&) = delete;
  PulseWatch& operator=(const PulseWatch&) = delete;

 private:
  class Silences;
  /// The thread and what wakes it.
  struct Sleeper {
    std::mutex mutex;  // guards `stopping`
    std::condition_variable changed;
    bool stopping = false;
    std::thread thread;
  };

  void run();
  std::optional<base::Error> find_trouble(Silences& silences);
  bool stopping_after(base::Duration pause);

  int rank_;
  shared::Pulse& pulse_;
  base::Duration timeout_;
  std::function<std::optional<base::Error>()> find_failure_;
  std::function<void(const base::Error&)> report_;
  int process_;
  std::unique_ptr<Sleeper> sleeper_;
};

}  // namespace fullshard::comm
