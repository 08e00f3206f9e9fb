#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "fullshard/data/windows.h"

namespace fullshard::data {

struct LoaderOptions {
  std::int64_t global_batch_size = 1;  ///< samples a step over all ranks
  std::int64_t micro_batches = 1;      ///< pieces into which each rank's share is cut
  int rank = 0;
  int world = 1;
  int prefetch = 2;  ///< steps made ahead, >= 1; each costs a step's tokens in memory
};

/// One rank's part of one training step.
struct StepData {
  std::vector<Batch> micro_batches;  ///< none empty; their rows together are the rank's share
  Cursor begin;                      ///< of the step's first sample over all ranks
  Cursor end;                        ///< where the next step begins
};

/// Yields the steps of an endless run through the epochs, made ahead on a thread of its own.
/// A step takes the next global_batch_size samples of the order; rank r takes the r-th contiguous
/// share of them. What all ranks get together is therefore the same for every world size, and
/// nothing is repeated or left out at the end of an epoch: a step may reach into the next.
///
/// One thread may use it at a time. Local: ranks do not wait for each other.
class BatchLoader {
 public:
  /// Throws kInvalidArgument when a rank would have a micro-batch without a sample.
  BatchLoader(std::shared_ptr<const Windows> windows, LoaderOptions options, Cursor start = {});

  /// Stops the thread; waits for no more than the one read that it is in.
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  /// The next step. An error met while making it is thrown here, in its turn and at every later
  /// call until seek().
  StepData next();

  /// Where the step that next() will give begins; steps made ahead do not count. A loader started
  /// or sought there continues as this one does, whatever its world size and prefetch.
  Cursor cursor() const { return cursor_; }

  /// Goes on from `cursor`, dropping what was made ahead. Throws kInvalidArgument outside an epoch.
  void seek(Cursor cursor);

 private:
  void run_thread();
  void stop();
  void produce(std::int64_t position);
  bool wait_for_room();
  StepData make(std::int64_t position) const;

  std::shared_ptr<const Windows> windows_;
  LoaderOptions options_;
  Cursor cursor_;
  std::thread thread_;

  std::mutex mutex_;  ///< guards what follows; never held while reading data
  std::condition_variable changed_;
  std::deque<StepData> ready_;
  std::exception_ptr error_;
  bool stopping_ = false;
};

}  // namespace fullshard::data
