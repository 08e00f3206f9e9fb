#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace fullshard::comm {

/// Threads that help whoever calls with work that can be cut. They sleep while there is none.
class Crew {
 public:
  /// With fewer helpers where the system gives no more threads.
  explicit Crew(int helpers);
  /// Nobody may be inside run().
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  /// Calls body(0) to body(parts - 1), each once, on this thread and on helpers that are free, and
  /// returns when all have ended. `body` does not throw. Any number of threads may call at once.
  /// Allocates nothing.
  void run(int parts, const std::function<void(int)>& body);

 private:
  // Work that a caller waits for; lies on its stack.
  struct Round {
    const std::function<void(int)>& body;
    int parts;
    int next = 0;  // the first part that nobody has taken
    int ended = 0;
    Round* later = nullptr;
  };

  void help();
  void take_part(Round& round, std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;  // guards what follows, and the rounds
  std::condition_variable work_;
  std::condition_variable ended_;
  Round* first_ = nullptr;  // of those with parts that nobody has taken
  bool closing_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace fullshard::comm
