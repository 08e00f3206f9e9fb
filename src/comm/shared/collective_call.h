#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/shared/busy_scope.h"
#include "comm/shared/operation.h"
#include "comm/shared/session.h"

namespace fullshard::comm::shared {

/// One collective call, from entering to finishing. The first meeting checks that all ranks make
/// the same call. Throws kMisuse when another thread of this rank is inside a call on the group.
class CollectiveCall {
 public:
  CollectiveCall(Session& session, std::atomic<bool>& busy, const OperationRecord& record);
  CollectiveCall(const CollectiveCall&) = delete;
  CollectiveCall& operator=(const CollectiveCall&) = delete;

  /// Arrives, and waits until every rank has: what they wrote before is then visible.
  void meet();

  /// Marks the operation as ended well. Without it, reports say that this rank is still inside.
  void finish();

  /// The operation's number in the group.
  std::uint64_t number() const { return number_; }

  /// Fails the operation on all ranks, from data that all ranks see alike.
  [[noreturn]] void mismatch(const std::string& message);

 private:
  void check_records();
  [[noreturn]] void report_records();

  std::optional<BusyScope> busy_;  // the first member: others may call when all here has ended
  Session& session_;
  const OperationRecord& record_;
  Waiting waiting_;
  std::uint64_t number_ = 0;
  std::optional<trace::Flight> flight_;
  bool checked_ = false;
};

}  // namespace fullshard::comm::shared
