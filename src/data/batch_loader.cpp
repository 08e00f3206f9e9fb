#include "fullshard/data/batch_loader.h"

#include <fmt/format.h>

#include <utility>

#include "fullshard/base/check.h"
#include "fullshard/base/error.h"

namespace fullshard::data {
namespace {

[[noreturn]] void reject(const std::string& message) {
  throw base::Error(base::ErrorCode::kInvalidArgument, message);
}

void validate(const LoaderOptions& options) {
  FULLSHARD_CHECK(options.world >= 1 && options.rank >= 0 && options.rank < options.world);
  if (options.prefetch < 1)
    reject(fmt::format("prefetch must be at least 1, not {}", options.prefetch));
  if (options.micro_batches < 1) {
    reject(fmt::format("micro_batches must be at least 1, not {}", options.micro_batches));
  }
  const std::int64_t least = options.micro_batches * options.world;
  if (options.global_batch_size < least) {
    reject(
        fmt::format("a global batch of {} samples is too small for {} ranks with {} micro-batches "
                    "each: it must be at least {}",
                    options.global_batch_size, options.world, options.micro_batches, least));
  }
}

void validate(Cursor cursor, const Windows& windows) {
  if (cursor.epoch >= 0 && cursor.sample >= 0 && cursor.sample < windows.per_epoch()) return;
  reject(fmt::format("no such place in the data: sample {} of epoch {}; an epoch has {} samples",
                     cursor.sample, cursor.epoch, windows.per_epoch()));
}

}  // namespace

BatchLoader::BatchLoader(std::shared_ptr<const Windows> windows, LoaderOptions options,
                         Cursor start)
    : windows_(std::move(windows)), options_(options), cursor_(start) {
  validate(options_);
  validate(cursor_, *windows_);
  run_thread();
}

BatchLoader::~BatchLoader() { stop(); }

void BatchLoader::run_thread() {
  thread_ = std::thread([this, position = windows_->position(cursor_)] { produce(position); });
}

void BatchLoader::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BatchLoader::produce(std::int64_t position) {
  try {
    while (wait_for_room()) {
      StepData step = make(position);
      position += options_.global_batch_size;
      const std::lock_guard lock(mutex_);
      ready_.push_back(std::move(step));
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

bool BatchLoader::wait_for_room() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return stopping_ || ready_.size() < static_cast<std::size_t>(options_.prefetch);
  });
  return !stopping_;
}

StepData BatchLoader::make(std::int64_t position) const {
  const Share share = share_of(options_.global_batch_size, options_.rank, options_.world);
  StepData step;
  step.begin = windows_->cursor(position);
  step.end = windows_->cursor(position + options_.global_batch_size);
  for (std::int64_t i = 0; i < options_.micro_batches; ++i) {
    const Share rows = share_of(share.size(), i, options_.micro_batches);
    step.micro_batches.push_back(windows_->batch(position + share.begin + rows.begin, rows.size()));
  }
  return step;
}

StepData BatchLoader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || error_; });
  if (ready_.empty()) std::rethrow_exception(error_);
  StepData step = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  cursor_ = step.end;
  return step;
}

void BatchLoader::seek(Cursor cursor) {
  validate(cursor, *windows_);
  stop();
  ready_.clear();
  error_ = nullptr;
  stopping_ = false;
  cursor_ = cursor;
  run_thread();
}

}  // namespace fullshard::data
