#include "comm/shared/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "comm/shared/futex.h"
#include "comm/shared/report.h"
#include "fullshard/base/check.h"
#include "fullshard/base/text.h"

namespace fullshard::comm::shared {
namespace {

using base::Error;
using base::ErrorCode;

// How long a wait sleeps before it looks whether its peers still live.
constexpr base::Duration kSlice = std::chrono::milliseconds(20);

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Announces a sleeper for as long as it lives.
class SleeperScope {
 public:
  explicit SleeperScope(std::atomic<std::uint32_t>& sleepers) : sleepers_(sleepers) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
  }
  ~SleeperScope() { sleepers_.fetch_sub(1, std::memory_order_relaxed); }
  SleeperScope(const SleeperScope&) = delete;
  SleeperScope& operator=(const SleeperScope&) = delete;

 private:
  std::atomic<std::uint32_t>& sleepers_;
};

}  // namespace

Session::Session(std::shared_ptr<SharedSegment> memory, int rank,
                 std::shared_ptr<trace::GroupTrace> trace, std::shared_ptr<Fabric> fabric,
                 CommOptions options)
    : memory_(std::move(memory)),
      block_(memory_->data()),
      rank_(rank),
      trace_(std::move(trace)),
      fabric_(std::move(fabric)),
      options_(std::move(options)),
      exceptions_at_start_(std::uncaught_exceptions()),
      process_(getpid()) {
  FULLSHARD_CHECK_EQ(static_cast<int>(members().size()), block_.ranks());
  options_.staging = block_.staging_bytes();
  options_.heartbeat_timeout = block_.heartbeat_timeout();
  block_.slot(rank_).presence.store(static_cast<std::uint32_t>(Presence::kPresent),
                                    std::memory_order_release);
}

Session::~Session() {
  if (getpid() != process_) return;  // a fork of the rank, which itself goes on
  if (std::uncaught_exceptions() > exceptions_at_start_) abort("it left because of an exception");
  block_.slot(rank_).presence.store(static_cast<std::uint32_t>(Presence::kLeft),
                                    std::memory_order_seq_cst);
  ring();
}

Counters Session::rounds() const { return {&block_.slot(0).rounds, sizeof(Slot), size()}; }

void Session::post(const Counters& counters, std::size_t index, std::uint64_t value) {
  std::atomic<std::uint64_t>& mine = counters.at(rank_, index);
  const std::uint64_t old = mine.load(std::memory_order_relaxed);
  FULLSHARD_CHECK_LE(old, value);
  mine.store(value, std::memory_order_seq_cst);
  if (counters.least_of_others(rank_, index) > old) ring();
}

void Session::ring() {
  ControlHeader& header = block_.header();
  if (header.sleepers.load(std::memory_order_seq_cst) == 0) return;
  header.doorbell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(header.doorbell);
}

bool Session::spin(const Counters& counters, std::size_t index, std::uint64_t value) const {
  const auto until = base::Clock::now() + options_.spin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (counters.reached(index, value)) return true;
      pause_cpu();
    }
  } while (base::Clock::now() < until);
  return false;
}

void Session::wait(const Counters& counters, std::size_t index, std::uint64_t value,
                   const Waiting& waiting) {
  if (counters.reached(index, value) || spin(counters, index, value)) return;
  ControlHeader& header = block_.header();
  const SleeperScope asleep(header.sleepers);
  auto next_look = base::Deadline::after(kSlice);
  while (true) {
    const std::uint32_t bell = header.doorbell.load(std::memory_order_seq_cst);
    if (counters.reached(index, value)) return;
    throw_if_failed(waiting);
    if (waiting.deadline.passed()) time_out(counters, index, value, waiting);
    if (next_look.passed()) {
      look_for_trouble(counters, index, value, waiting);
      next_look = base::Deadline::after(kSlice);
    }
    futex_wait(header.doorbell, bell,
               std::min(next_look.remaining(), waiting.deadline.remaining()));
  }
}

// A dead rank fails the wait whether or not it had arrived: the job cannot go on. A rank that left
// in order matters only when it is waited for.
void Session::look_for_trouble(const Counters& counters, std::size_t index, std::uint64_t value,
                               const Waiting& waiting) {
  for (int other = 0; other < size(); ++other) {
    if (other == rank_) continue;
    const Slot& slot = block_.slot(other);
    // In this order: a rank that leaves and then ends is seen as having left.
    const auto death = fabric_->death_of(world_rank(other));
    const bool left = slot.presence.load(std::memory_order_seq_cst) ==
                      static_cast<std::uint32_t>(Presence::kLeft);
    if (!left && !death) continue;
    if (left && counters.at(other, index).load(std::memory_order_seq_cst) >= value) continue;
    // Everyone may have arrived, and some of them gone, since the last look.
    if (counters.reached(index, value)) return;
    throw_if_failed(waiting);
    const int lost = world_rank(other);
    fail(ErrorCode::kPeerLost, lost,
         !left ? fmt::format("{}: rank {} is lost: {}; it {}", waiting.describe(), lost, *death,
                             last_act(slot))
               : fmt::format("{}: rank {} will not come: it {}", waiting.describe(), lost,
                             last_act(slot)),
         waiting);
  }
}

void Session::look(const std::function<std::string()>& what) {
  const Waiting waiting{base::Deadline::after(base::Duration::max()), what};
  throw_if_failed(waiting);
  if (const auto loss = find_loss()) {
    fail(ErrorCode::kPeerLost, loss->first, what() + ": " + loss->second, waiting);
  }
}

// A rank that has died without leaving, and an account of it.
std::optional<std::pair<int, std::string>> Session::find_loss() const {
  for (int other = 0; other < size(); ++other) {
    if (other == rank_) continue;
    const Slot& slot = block_.slot(other);
    const int lost = world_rank(other);
    // In this order: a rank that leaves and then ends is seen as having left.
    const auto death = fabric_->death_of(lost);
    const bool left = slot.presence.load(std::memory_order_seq_cst) ==
                      static_cast<std::uint32_t>(Presence::kLeft);
    if (left || !death) continue;
    return {{lost, fmt::format("rank {} is lost: {}; it {}", lost, *death, last_act(slot))}};
  }
  return std::nullopt;
}

void Session::time_out(const Counters& counters, std::size_t index, std::uint64_t value,
                       const Waiting& waiting) {
  std::vector<int> arrived;
  std::vector<int> missing;
  std::string acts;
  for (int other = 0; other < size(); ++other) {
    const bool here = counters.at(other, index).load(std::memory_order_seq_cst) >= value;
    (here ? arrived : missing).push_back(world_rank(other));
    if (here || missing.size() > 8) continue;
    acts += fmt::format("; rank {} {}", world_rank(other), last_act(block_.slot(other)));
  }
  if (missing.empty()) return;  // the last one came while this was written
  // Those who are missing may themselves wait, in another group, for one that does not run.
  const int stopped = fabric_->stopped_rank();
  if (stopped >= 0) acts += fmt::format("; the process of rank {} is stopped", stopped);
  fail(ErrorCode::kTimeout, stopped >= 0 ? stopped : missing.front(),
       fmt::format("{} timed out after {:.3g} s: {} arrived, {} missing{}", waiting.describe(),
                   base::seconds(options_.timeout), base::name_ranks(arrived),
                   base::name_ranks(missing) + (missing.size() == 1 ? " is" : " are"), acts),
       waiting);
}

void Session::fail(ErrorCode code, int cause_rank, const std::string& message,
                   const Waiting& waiting) {
  const std::string full = fmt::format("rank {}: {}", world_rank(rank_), message);
  record_failure(code, cause_rank, full);
  raise(code, full, cause_rank, waiting.flight);
}

std::optional<Error> Session::failure() const {
  const Failure& failure = block_.header().failure;
  if (failure.state.load(std::memory_order_acquire) != 2) return std::nullopt;
  return Error(failure.code, failure.message.data(), failure.cause_rank);
}

void Session::throw_if_failed(const Waiting& waiting) const {
  const auto failure = this->failure();
  if (!failure) return;
  raise(failure->code(),
        fmt::format("rank {}: {} cannot go on: {}", world_rank(rank_), waiting.describe(),
                    failure->what()),
        failure->rank(), waiting.flight);
}

void Session::raise(ErrorCode code, const std::string& message, int cause_rank,
                    trace::Flight* flight) const {
  if (flight != nullptr) flight->fail();
  throw Error(code, message + trace_->write_failure(message), cause_rank);
}

void Session::record_failure(ErrorCode code, int cause_rank, std::string_view message) noexcept {
  Failure& failure = block_.header().failure;
  std::uint32_t none = 0;
  if (failure.state.compare_exchange_strong(none, 1, std::memory_order_acq_rel)) {
    failure.code = code;
    failure.cause_rank = cause_rank;
    failure.reporter = rank_;
    message.copy(failure.message.data(), failure.message.size() - 1);
    failure.state.store(2, std::memory_order_seq_cst);
  }
  ring();
}

void Session::abort(std::string_view reason) noexcept {
  std::array<char, 1024> text{};
  const auto end = fmt::format_to_n(text.data(), text.size() - 1, "rank {} gave up: {}",
                                    world_rank(rank_), reason);
  const std::string_view message(text.data(), std::min(end.size, text.size() - 1));
  record_failure(ErrorCode::kPeerLost, world_rank(rank_), message);
  trace_->write_failure(message);
}

void Session::beat() noexcept { block_.slot(rank_).beats.fetch_add(1, std::memory_order_relaxed); }

void Session::rest() noexcept { block_.slot(rank_).beats.store(kRests, std::memory_order_relaxed); }

std::vector<Pulse::Beats> Session::beats() const {
  std::vector<Pulse::Beats> all;
  if (!fabric_->has_processes()) return all;
  for (int other = 0; other < size(); ++other) {
    const Slot& slot = block_.slot(other);
    const bool takes_part = slot.presence.load(std::memory_order_acquire) ==
                            static_cast<std::uint32_t>(Presence::kPresent);
    const std::uint64_t beats = slot.beats.load(std::memory_order_relaxed);
    if (other != rank_ && takes_part && beats != kRests) all.push_back({world_rank(other), beats});
  }
  return all;
}

std::optional<Error> Session::find_failure() {
  auto known = failure();
  if (known) return known;
  const auto loss = find_loss();
  if (!loss) return std::nullopt;
  const std::string message = fmt::format("rank {}: {}", world_rank(rank_), loss->second);
  record_failure(ErrorCode::kPeerLost, loss->first, message);
  // There is none when a rank was killed while it wrote it, and there never will be.
  return failure().value_or(Error(ErrorCode::kPeerLost, message, loss->first));
}

std::string Session::account_of(int world_rank) const {
  const auto seat = std::find(members().begin(), members().end(), world_rank) - members().begin();
  const char* const state =
      fabric_->stopped_rank() == world_rank ? "its process is stopped" : "its process does not run";
  return fmt::format("{}; it {}", fabric_->death_of(world_rank).value_or(state),
                     last_act(block_.slot(static_cast<int>(seat))));
}

void Session::note(SignalNote::Act act, std::string_view operation, const OpTag& tag) {
  Slot& slot = block_.slot(rank_);
  slot.note.store({act, FixedText<32>(operation), FixedText<96>(tag.unit), tag.step});
  slot.noted_at.store(now_ns(), std::memory_order_relaxed);
}

}  // namespace fullshard::comm::shared
