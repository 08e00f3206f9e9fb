#include "comm/c10d/greeting.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/shared/report.h"
#include "comm/shared/roll_call.h"
#include "fullshard/base/error.h"
#include "fullshard/base/text.h"

namespace fullshard::comm::c10d {
namespace {

using base::Error;
using base::ErrorCode;

// Follows who waits for whom, from the ranks that did not come, or from the one whose message did
// not, to one that does not answer the roll call; or takes another one that does not, as a rank may
// wait for it inside their host, which no chain shows. When all answer, it is the one where the
// first chain ends. -1 when nobody was waited for.
int find_culprit(const Membership& membership, const std::vector<int>& missing, int waited_for) {
  std::vector<int> starts = missing;
  if (starts.empty() && waited_for >= 0) starts.push_back(waited_for);
  int first_end = -1;
  for (const int start : starts) {
    std::vector<bool> seen(static_cast<std::size_t>(membership.size()));
    int end = start;
    for (int next = start; next >= 0 && !seen[static_cast<std::size_t>(next)];
         next = membership.waits_for(next)) {
      seen[static_cast<std::size_t>(next)] = true;
      end = next;
    }
    if (!membership.answers(end)) return end;
    if (first_end < 0) first_end = end;
  }
  const int silent = membership.find_silent();
  return silent >= 0 ? silent : first_end;
}

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

std::string Greeting::describe_missing(const std::vector<int>& missing) const {
  constexpr std::size_t kShown = 8;
  std::vector<int> numbers;
  std::string acts;
  for (const int rank : missing) {
    numbers.push_back(membership_.world_rank(rank));
    if (numbers.size() > kShown) continue;
    acts += fmt::format("; rank {} {}", numbers.back(), membership_.last_seen(rank));
  }
  return fmt::format("{} {} missing{}", base::name_ranks(numbers),
                     numbers.size() == 1 ? "is" : "are", acts);
}

void Greeting::time_out(base::Duration timeout, int waited_for) {
  membership_.call_roll(waited_for, std::min(timeout, shared::kLongestRollCall));
  std::vector<int> arrived;
  std::vector<int> missing;
  for (int rank = 0; rank < membership_.size(); ++rank) {
    if (has_come(rank)) {
      arrived.push_back(membership_.world_rank(rank));
    } else {
      missing.push_back(rank);
    }
  }
  const int culprit = find_culprit(membership_, missing, waited_for);
  const int named = culprit < 0 ? -1 : membership_.world_rank(culprit);
  std::string who = base::name_ranks(arrived) + " arrived, ";
  who += missing.empty()
             ? fmt::format("but a message from or to rank {} did not get through", named)
             : describe_missing(missing);
  if (culprit >= 0 && !membership_.answers(culprit)) {
    who +=
        fmt::format("; rank {} does not answer: its process is stopped, or its host hangs", named);
  }
  const shared::OperationRecord& own =
      letters_[static_cast<std::size_t>(membership_.rank())].record;
  membership_.fail(ErrorCode::kTimeout, named,
                   fmt::format("rank {}: {} timed out after {:.3g} s: {}",
                               membership_.world_rank(membership_.rank()),
                               describe_call(own, number_), base::seconds(timeout), who));
}

}  // namespace fullshard::comm::c10d
