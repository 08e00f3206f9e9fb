#include "comm/c10d/greeting.h"

#include <fmt/format.h>

#include <utility>

#include "comm/shared/report.h"
#include "fullshard/base/error.h"

namespace fullshard::comm::c10d {
namespace {

using base::Error;
using base::ErrorCode;

}  // namespace

Greeting::Greeting(Membership& membership, std::uint64_t number,
                   const shared::OperationRecord& record)
    : membership_(membership),
      number_(number),
      letters_(static_cast<std::size_t>(membership.size())) {
  letters_[static_cast<std::size_t>(membership.rank())] = {number, record, number};
}

void Greeting::exchange(Transfer& transfer) {
  const int rank = membership_.rank();
  const int size = membership_.size();
  const auto letter = [&](int of) { return &letters_[static_cast<std::size_t>(of)]; };
  // A dead rank is soon noticed by somebody, because everybody waits for another one first.
  for (int i = 1; i < size; ++i) {
    const int peer = (rank + i) % size;
    transfer.recv(peer, letter(peer), sizeof(Letter));
  }
  for (int i = 1; i < size; ++i) {
    transfer.send((rank + i) % size, letter(rank), sizeof(Letter));
  }
  transfer.finish();
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) membership_.saw(peer, letter(peer)->record);
  }
  check_records();
}

bool Greeting::has_come(int rank) const {
  const Letter& letter = letters_[static_cast<std::size_t>(rank)];
  return letter.first == number_ && letter.last == number_;
}

void Greeting::check_records() {
  const shared::OperationRecord& own =
      letters_[static_cast<std::size_t>(membership_.rank())].record;
  bool all_equal = true;
  std::vector<std::pair<int, shared::OperationRecord>> calls;
  for (int rank = 0; rank < membership_.size(); ++rank) {
    const shared::OperationRecord& record = letters_[static_cast<std::size_t>(rank)].record;
    all_equal = all_equal && record == own;
    calls.emplace_back(membership_.world_rank(rank), record);
  }
  if (all_equal) return;
  const std::string text = "ranks made different calls: " + shared::describe_calls(calls);
  membership_.fail(ErrorCode::kMismatch, -1, text);
  throw Error(ErrorCode::kMismatch, text);
}

void Greeting::time_out(base::Duration timeout, int waited_for) {
  std::vector<int> arrived;
  std::vector<int> missing;
  std::string acts;
  for (int rank = 0; rank < membership_.size(); ++rank) {
    const bool here = has_come(rank);
    (here ? arrived : missing).push_back(membership_.world_rank(rank));
    if (here || missing.size() > 8) continue;
    acts += fmt::format("; rank {} {}", membership_.world_rank(rank), membership_.last_seen(rank));
  }
  const shared::OperationRecord& own =
      letters_[static_cast<std::size_t>(membership_.rank())].record;
  const int stuck = waited_for < 0 ? -1 : membership_.world_rank(waited_for);
  const std::string who =
      missing.empty()
          ? fmt::format("{} arrived, but a message from or to rank {} did not get through",
                        shared::name_ranks(arrived), stuck)
          : fmt::format("{} arrived, {} missing{}", shared::name_ranks(arrived),
                        shared::name_ranks(missing) + (missing.size() == 1 ? " is" : " are"), acts);
  membership_.fail(ErrorCode::kTimeout, missing.empty() ? stuck : missing.front(),
                   fmt::format("rank {}: {} timed out after {:.3g} s: {}",
                               membership_.world_rank(membership_.rank()), describe(own),
                               base::seconds(timeout), who));
}

}  // namespace fullshard::comm::c10d
