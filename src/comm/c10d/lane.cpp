#include "comm/c10d/lane.h"

#include <algorithm>
#include <utility>

#include "comm/c10d/link.h"

namespace fullshard::comm::c10d {
namespace {

class Ticket {
 public:
  Ticket(std::shared_ptr<Job> job, std::function<void()> give_up)
      : job_(std::move(job)),
        give_up_(std::move(give_up)),
        exceptions_at_start_(std::uncaught_exceptions()) {}
  ~Ticket() {
    if (job_->ended()) return;
    if (std::uncaught_exceptions() > exceptions_at_start_) give_up_();
    job_->wait_for_end();
  }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  Job& job() const { return *job_; }

 private:
  std::shared_ptr<Job> job_;
  std::function<void()> give_up_;
  int exceptions_at_start_;
};

}  // namespace

Work work_of(std::shared_ptr<Job> job, std::function<void()> give_up) {
  const auto ticket = std::make_shared<Ticket>(std::move(job), std::move(give_up));
  return Work([ticket] { ticket->job().wait(); }, [ticket] { return ticket->job().ended_well(); });
}

void Job::wait_for_end() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_; });
}

void Job::wait() {
  wait_for_end();
  if (error_) std::rethrow_exception(error_);  // not written any more
}

bool Job::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

bool Job::ended_well() const {
  const std::lock_guard lock(mutex_);
  return ended_ && !error_;
}

Lane::Lane() {
  const NoSigpipeScope no_sigpipe;
  thread_ = std::thread([this] { run(); });
}

Lane::~Lane() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::shared_ptr<Job> Lane::submit(std::function<void()> body) {
  auto job = std::make_shared<Job>();
  job->body_ = std::move(body);
  const std::lock_guard lock(mutex_);
  jobs_.push_back(job);
  changed_.notify_all();
  return job;
}

void Lane::run() {
  while (true) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closing_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    std::exception_ptr error;
    try {
      job->body_();
    } catch (...) {
      error = std::current_exception();
    }
    job->body_ = nullptr;
    const std::lock_guard lock(job->mutex_);
    job->error_ = std::move(error);
    job->ended_ = true;
    job->changed_.notify_all();
  }
}

Alarm::Alarm(std::function<void()> ring) : ring_(std::move(ring)) {
  thread_ = std::thread([this] { run(); });
}

Alarm::~Alarm() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Alarm::set(base::Deadline deadline) {
  const std::lock_guard lock(mutex_);
  deadline_ = deadline;
  // Deadlines mostly grow, and then the thread looks at the new one when the old one passes.
  if (deadline.remaining() < wakes_at_.remaining()) changed_.notify_all();
}

void Alarm::clear() {
  const std::lock_guard lock(mutex_);
  deadline_.reset();
}

void Alarm::run() {
  constexpr base::Duration kLongestSleep = std::chrono::hours(1);
  std::unique_lock lock(mutex_);
  while (!closing_) {
    if (deadline_ && deadline_->passed()) {
      deadline_.reset();
      ring_();
      continue;
    }
    const base::Duration sleep =
        deadline_ ? std::min(deadline_->remaining(), kLongestSleep) : kLongestSleep;
    wakes_at_ = base::Deadline::after(sleep);
    changed_.wait_for(lock, sleep);
  }
}

}  // namespace fullshard::comm::c10d
