#include "comm/shared/collective_call.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "comm/shared/report.h"
#include "fullshard/base/error.h"

namespace fullshard::comm::shared {

using base::ErrorCode;

CollectiveCall::CollectiveCall(Session& session, std::atomic<bool>& busy,
                               const OperationRecord& record)
    : session_(session),
      record_(record),
      waiting_{base::Deadline::after(session.options().timeout),
               [this] { return describe_call(record_, number_); }} {
  session_.throw_if_failed(waiting_);
  busy_.emplace(busy, [this] {
    return fmt::format("rank {}: {}", session_.world_rank(session_.rank()), describe(record_));
  });
  Slot& slot = session_.block().slot(session_.rank());
  number_ = slot.entered.load(std::memory_order_relaxed) + 1;
  // Peers read the record of the previous operation until they meet in this one; that is the other
  // slot.
  slot.operations[number_ % 2].store(record_);
  slot.changed_at.store(now_ns(), std::memory_order_relaxed);
  slot.entered.store(number_, std::memory_order_release);
  flight_.emplace(session_.trace().begin(number_, record_));
  waiting_.flight = &*flight_;
}

void CollectiveCall::finish() {
  Slot& slot = session_.block().slot(session_.rank());
  slot.changed_at.store(now_ns(), std::memory_order_relaxed);
  slot.finished.store(number_, std::memory_order_release);
  flight_->finish();
}

void CollectiveCall::meet() {
  const Counters rounds = session_.rounds();
  const std::uint64_t next = rounds.at(session_.rank(), 0).load(std::memory_order_relaxed) + 1;
  session_.post(rounds, 0, next);
  session_.wait(rounds, 0, next, waiting_);
  if (!checked_) check_records();
  checked_ = true;
}

void CollectiveCall::mismatch(const std::string& message) {
  const std::string text = "ranks made different calls: " + message;
  session_.record_failure(ErrorCode::kMismatch, -1, text);
  session_.raise(ErrorCode::kMismatch, text, -1, &*flight_);
}

void CollectiveCall::check_records() {
  for (int rank = 0; rank < session_.size(); ++rank) {
    const auto record = session_.block().slot(rank).operations[number_ % 2].load();
    // Nothing to read: its rank was killed while writing, and the next wait will tell.
    if (record && *record != record_) report_records();
  }
}

void CollectiveCall::report_records() {
  std::vector<std::pair<int, OperationRecord>> calls;
  for (int rank = 0; rank < session_.size(); ++rank) {
    const auto record = session_.block().slot(rank).operations[number_ % 2].load();
    if (record) calls.emplace_back(session_.world_rank(rank), *record);
  }
  mismatch(describe_calls(calls));
}

}  // namespace fullshard::comm::shared
