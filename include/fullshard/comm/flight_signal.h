#pragma once

#include <csignal>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fullshard/comm/world.h"

namespace fullshard::comm {

/// While it lives, SIGUSR2 makes this process write the flight records of the worlds it watches and
/// say so on standard error; also while their threads are stuck in operations, since a thread of
/// its own does the writing. At most one object at a time in a process, since signals belong to the
/// process.
class FlightSignal {
 public:
  /// Files go to `folder`, as those of World::write_flight_record. Throws base::Error kSystem.
  explicit FlightSignal(std::string folder);

  /// SIGUSR2 does again what it did before.
  ~FlightSignal();
  FlightSignal(const FlightSignal&) = delete;
  FlightSignal& operator=(const FlightSignal&) = delete;

  /// The world may end before or after this. Any thread.
  void watch(const World& world);

 private:
  void run();
  void write_records();

  std::string folder_;
  struct sigaction before_;
  std::mutex mutex_;  // guards what follows
  std::vector<std::weak_ptr<trace::Recorder>> recorders_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace fullshard::comm
