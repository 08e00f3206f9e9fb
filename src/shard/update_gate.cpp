#include "shard/update_gate.h"

#include "fullshard/base/deadline.h"
#include "shard/stopwatch.h"

namespace fullshard::shard {

std::unique_ptr<UpdateGate> UpdateGate::make(comm::Group& shard) {
  if (!shard.shares_memory()) return std::make_unique<PrivateUpdateGate>();
  return std::make_unique<SharedUpdateGate>(
      shard.allocate_signals(SharedUpdateGate::kCounters, "parameter updates"));
}

void SharedUpdateGate::begin_write() {
  if (writing_) return;
  const Stopwatch watch(waited_seconds_);
  ++version_;
  const auto version = static_cast<std::uint64_t>(version_);
  board_->post(kReadDone, version, "optimizer update", {"", version_});
  board_->wait(kReadDone, version, "optimizer update", {"", version_});
  writing_ = true;
}

void SharedUpdateGate::end_write() {
  if (!writing_) return;
  writing_ = false;
  board_->post(kWritten, static_cast<std::uint64_t>(version_), "all_gather", {"", version_});
}

void SharedUpdateGate::ensure_readable(const std::string& unit) {
  if (is_readable()) return;
  const Stopwatch watch(waited_seconds_);
  end_write();
  reading_.unit = unit;
  reading_.step = version_;
  board_->wait(kWritten, static_cast<std::uint64_t>(version_), "all_gather", reading_);
  readable_version_ = version_;
}

}  // namespace fullshard::shard
