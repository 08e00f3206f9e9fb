#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/c10d/membership.h"
#include "comm/c10d/transfer.h"
#include "comm/shared/operation.h"
#include "fullshard/base/deadline.h"

namespace fullshard::comm::c10d {

/// The beginning of an operation: every rank tells every other what it is calling. Holds what has
/// come of it, for reports.
class Greeting {
 public:
  Greeting(Membership& membership, std::uint64_t number, const shared::OperationRecord& record);

  /// Sends this rank's record and waits for those of the others. Throws kMismatch, on all ranks,
  /// when they are not all the same, and what Transfer throws.
  void exchange(Transfer& transfer);

  /// Fails the group because the deadline has passed, and says who has come and who has not; when
  /// all have, whose message did not get through, which is not that of `waited_for` when that rank
  /// waits for another one itself. Only after the transfer's messages have been withdrawn.
  void time_out(base::Duration timeout, int waited_for);

 private:
  /// What travels. The number stands at both ends, so that a greeting that has come in part is not
  /// taken for one that has come.
  struct Letter {
    std::uint64_t first = 0;
    shared::OperationRecord record;
    std::uint64_t last = 0;
  };
  bool has_come(int rank) const;
  void check_records();
  std::string describe_missing(const std::vector<int>& missing) const;

  Membership& membership_;
  std::uint64_t number_;
  std::vector<Letter> letters_;  // by rank, this rank's own among them
};

}  // namespace fullshard::comm::c10d
