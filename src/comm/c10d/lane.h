#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "fullshard/base/deadline.h"
#include "fullshard/comm/work.h"

namespace fullshard::comm::c10d {

/// Something that a Lane does. Any thread may call.
class Job {
 public:
  /// Returns when it has been done; rethrows what it threw, each time.
  void wait();

  /// Returns when it has been done, however that ended.
  void wait_for_end();

  bool ended() const;
  bool ended_well() const;

 private:
  friend class Lane;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::function<void()> body_;
  std::exception_ptr error_;
  bool ended_ = false;
};

/// The Work of a job. Nobody may free the buffers of an operation that goes on, so the last copy to
/// be dropped waits; during the unwinding of an exception it calls `give_up` first, which is to end
/// the job.
Work work_of(std::shared_ptr<Job> job, std::function<void()> give_up);

/// A thread that does one job after the other, in the order of their coming.
class Lane {
 public:
  Lane();
  /// Returns when all jobs have been done.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  std::shared_ptr<Job> submit(std::function<void()> body);

 private:
  void run();

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool closing_ = false;
  std::thread thread_;
};

/// Calls `ring` when a deadline passes that was not cleared before.
class Alarm {
 public:
  explicit Alarm(std::function<void()> ring);
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  void set(base::Deadline deadline);

  /// Once this has returned, the alarm neither rings nor is ringing.
  void clear();

 private:
  void run();

  std::function<void()> ring_;
  std::mutex mutex_;  // guards what follows; held while ringing
  std::condition_variable changed_;
  std::optional<base::Deadline> deadline_;
  base::Deadline wakes_at_ = base::Deadline::after(base::Duration::max());
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace fullshard::comm::c10d
