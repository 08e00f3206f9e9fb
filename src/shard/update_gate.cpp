#include "shard/update_gate.h"

#include "fullshard/base/deadline.h"
#include "shard/stopwatch.h"

namespace fullshard::shard {

void UpdateGate::begin_write() {
  if (writing_) return;
  const Stopwatch watch(waited_seconds_);
  ++version_;
  board_.post(kReadDone, static_cast<std::uint64_t>(version_));
  board_.wait(kReadDone, static_cast<std::uint64_t>(version_), "optimizer update", {"", version_});
  writing_ = true;
}

void UpdateGate::end_write() {
  if (!writing_) return;
  writing_ = false;
  board_.post(kWritten, static_cast<std::uint64_t>(version_));
}

void UpdateGate::ensure_readable(const std::string& unit) {
  if (is_readable()) return;
  const Stopwatch watch(waited_seconds_);
  end_write();
  board_.wait(kWritten, static_cast<std::uint64_t>(version_), "all_gather", {unit, version_});
  readable_version_ = version_;
}

}  // namespace fullshard::shard
