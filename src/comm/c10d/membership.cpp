#include "comm/c10d/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "comm/shared/report.h"
#include "fullshard/base/deadline.h"

namespace fullshard::comm::c10d {
namespace {

using base::Error;
using base::ErrorCode;

constexpr int kControlTag = 1;

// How long the reason for what a rank does, or the end of an operation, may be on its way. When
// only a data connection breaks, the control connection would say nothing for ever.
constexpr base::Duration kGrace = std::chrono::seconds(2);

}  // namespace

Membership::Membership(std::unique_ptr<Link> control, int rank, std::vector<int> members,
                       std::function<void()> interrupt, std::function<int()> waited_for)
    : control_(std::move(control)),
      rank_(rank),
      members_(std::move(members)),
      interrupt_(std::move(interrupt)),
      waited_for_(std::move(waited_for)),
      peers_(members_.size()) {}

Membership::~Membership() { close(); }

void Membership::start() {
  const NoSigpipeScope no_sigpipe;
  for (int other = 0; other < size(); ++other) {
    if (other != rank_) open_receives(other);
  }
  for (int other = 0; other < size(); ++other) {
    if (other == rank_) continue;
    peers_[static_cast<std::size_t>(other)].watcher = std::thread([this, other] { watch(other); });
  }
}

void Membership::open_receives(int peer) {
  Peer& entry = peers_[static_cast<std::size_t>(peer)];
  try {
    for (Words& words : entry.incoming) {
      entry.listening.push_back(control_->recv(peer, &words, sizeof(words), kControlTag));
    }
  } catch (const std::exception&) {
    entry.listening.clear();  // it is gone already, and its watcher says so
  }
}

void Membership::close() noexcept {
  say_last_words();
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closing_, true)) return;
    changed_.notify_all();
  }
  {
    const std::lock_guard lock(mutex_);
    for (Peer& peer : peers_) {
      for (Message& message : peer.listening) message.interrupt();
    }
  }
  for (Peer& peer : peers_) {
    if (peer.watcher.joinable()) peer.watcher.join();
  }
  interrupt_ = [] {};  // nobody calls it any more but abort()
  for (Peer& peer : peers_) {
    peer.listening.clear();
    peer.pong.message.reset();
  }
  ping_.message.reset();
  sent_.clear();
  control_.reset();
}

void Membership::watch(int peer) {
  Peer& entry = peers_[static_cast<std::size_t>(peer)];
  const auto oldest = [&] {
    const std::lock_guard lock(mutex_);
    return entry.listening.front();
  };
  if (entry.listening.empty()) return judge(peer, Presence::kLost);
  try {
    for (std::size_t next = 0; oldest().wait(); next = (next + 1) % kListening) {
      Words& words = entry.incoming[next];
      if (!take(peer, words)) return;
      const std::lock_guard lock(mutex_);
      if (closing_) return;
      entry.listening.pop_front();
      entry.listening.push_back(control_->recv(peer, &words, sizeof(words), kControlTag));
    }
  } catch (const std::exception&) {
    judge(peer, Presence::kLost);
  }
}

// Whether more may come from the rank.
bool Membership::take(int peer, const Words& words) {
  if (words.topic == Topic::kQuestion) {
    answer(peer);
    return true;
  }
  if (words.topic == Topic::kPing || words.topic == Topic::kPong) {
    take_beat(peer, words.topic);
    return true;
  }
  Peer& entry = peers_[static_cast<std::size_t>(peer)];
  {
    const std::lock_guard lock(mutex_);
    if (words.topic == Topic::kAnswer) {
      entry.answer = words;
    } else {
      entry.last_words = words;
    }
    changed_.notify_all();
  }
  if (words.topic == Topic::kLastWords) judge(peer, Presence::kLeft);
  return words.topic == Topic::kAnswer;
}

void Membership::answer(int peer) {
  const int waited_for = waited_for_();
  const std::lock_guard lock(mutex_);
  if (spoken_) return;
  send_locked(peer, {.topic = Topic::kAnswer,
                     .waited_for = waited_for >= 0 ? waited_for : waited_for_before_});
}

void Membership::take_beat(int peer, Topic topic) {
  const std::lock_guard lock(mutex_);
  Peer& entry = peers_[static_cast<std::size_t>(peer)];
  if (topic == Topic::kPong) {
    ++entry.beats;
    if (peer == watched_) pinging_ = false;
  } else if (!spoken_) {
    entry.pong.words.topic = Topic::kPong;
    send_locked(peer, entry.pong);
  }
}

void Membership::beat() noexcept {
  const std::lock_guard lock(mutex_);
  if (spoken_) return;
  const int next = next_present_locked();
  if (next == watched_ && pinging_) return;
  watched_ = next;
  pinging_ = next >= 0;
  if (!pinging_) return;
  ping_.words.topic = Topic::kPing;
  send_locked(next, ping_);
}

std::vector<shared::Pulse::Beats> Membership::beats() const {
  const std::lock_guard lock(mutex_);
  if (spoken_ || watched_ < 0) return {};
  return {{world_rank(watched_), peers_[static_cast<std::size_t>(watched_)].beats}};
}

std::string Membership::account_of(int world_rank) const {
  const auto seat = std::find(members_.begin(), members_.end(), world_rank) - members_.begin();
  return "its process does not run or its host cannot be reached; it " +
         last_seen(static_cast<int>(seat));
}

// Around the circle, -1 when nobody else is there.
int Membership::next_present_locked() const {
  for (int step = 1; step < size(); ++step) {
    const int other = (rank_ + step) % size();
    if (peers_[static_cast<std::size_t>(other)].presence == Presence::kPresent) return other;
  }
  return -1;
}

void Membership::call_roll(int waited_for, base::Duration grace) {
  std::unique_lock lock(mutex_);
  waited_for_before_ = waited_for;
  if (spoken_) return;
  for (int other = 0; other < size(); ++other) {
    if (other != rank_) send_locked(other, {.topic = Topic::kQuestion});
  }
  changed_.wait_for(lock, grace, [&] { return failure_ || all_answered_locked(); });
}

bool Membership::all_answered_locked() const {
  for (int other = 0; other < size(); ++other) {
    if (other != rank_ && !has_answered_locked(other)) return false;
  }
  return true;
}

// Or need not, because it is gone.
bool Membership::has_answered_locked(int peer) const {
  const Peer& entry = peers_[static_cast<std::size_t>(peer)];
  return entry.answer || entry.presence != Presence::kPresent;
}

int Membership::find_silent() const {
  const std::lock_guard lock(mutex_);
  for (int other = 0; other < size(); ++other) {
    if (other != rank_ && !has_answered_locked(other)) return other;
  }
  return -1;
}

bool Membership::answers(int peer) const {
  const std::lock_guard lock(mutex_);
  return peer == rank_ || peers_[static_cast<std::size_t>(peer)].answer.has_value();
}

int Membership::waits_for(int peer) const {
  const std::lock_guard lock(mutex_);
  const auto& answer = peers_[static_cast<std::size_t>(peer)].answer;
  if (peer == rank_) return waited_for_before_;
  return answer ? answer->waited_for : -1;
}

void Membership::judge(int peer, Presence presence) {
  {
    std::unique_lock lock(mutex_);
    if (closing_) return;
    Peer& entry = peers_[static_cast<std::size_t>(peer)];
    entry.presence = presence;
    changed_.notify_all();
    const Words& words = entry.last_words;
    const bool gave_up = presence == Presence::kLeft && words.failed != 0;
    std::optional<Failure> failure = absence_locked(peer);
    if (gave_up) {
      failure = {static_cast<ErrorCode>(words.code), words.cause_rank, words.message.data()};
    }
    if (!failure) return;
    record_locked(std::move(failure));
    // What it had to send for the operation that is going on here is on its way, so that one may
    // end well, and the next fails. But what another rank had to send, for instance the one that
    // the failure is about, may never come.
    if (gave_up && words.finished >= entered_ && operation_ends(lock)) return;
  }
  announce_failure();
}

// Whether the operation that is going on here ends in time.
bool Membership::operation_ends(std::unique_lock<std::mutex>& lock) {
  return changed_.wait_for(lock, kGrace, [this, number = entered_] {
    return closing_ || inside_.empty() || entered_ != number;
  });
}

// What the absence of a rank means for the group: nothing while nobody waits for one that left.
std::optional<Failure> Membership::absence_locked(int peer) const {
  const Peer& entry = peers_[static_cast<std::size_t>(peer)];
  const int lost = world_rank(peer);
  const std::string call = inside_.empty() ? "" : inside_ + ": ";
  if (entry.presence == Presence::kLost) {
    return Failure{
        ErrorCode::kPeerLost, lost,
        fmt::format("rank {}: {}rank {} is lost: its connection broke, so its process has ended or "
                    "its host cannot be reached; it {}",
                    world_rank(rank_), call, lost, last_seen_locked(peer))};
  }
  if (entry.presence == Presence::kLeft && !inside_.empty() &&
      entry.last_words.entered < entered_) {
    return Failure{ErrorCode::kPeerLost, lost,
                   fmt::format("rank {}: {}rank {} will not come: it {}", world_rank(rank_), call,
                               lost, last_seen_locked(peer))};
  }
  return std::nullopt;
}

void Membership::enter(std::uint64_t number, const shared::OperationRecord& record) {
  const std::string what = describe_call(record, number);
  throw_if_failed(what);
  {
    const std::lock_guard lock(mutex_);
    entered_ = number;
    inside_ = what;
    bool missing = false;
    for (int other = 0; other < size() && !missing; ++other) {
      if (other != rank_) missing = record_locked(absence_locked(other));
    }
    if (!missing) return;
  }
  announce_failure();
  throw_if_failed(what);
}

void Membership::leave_operation() {
  const std::lock_guard lock(mutex_);
  inside_.clear();
  finished_ = entered_;
  changed_.notify_all();
}

void Membership::saw(int peer, const shared::OperationRecord& record) {
  const std::lock_guard lock(mutex_);
  Peer& entry = peers_[static_cast<std::size_t>(peer)];
  entry.seen = record;
  entry.seen_at = shared::now_ns();
}

std::string Membership::last_seen(int peer) const {
  const std::lock_guard lock(mutex_);
  return last_seen_locked(peer);
}

std::string Membership::last_seen_locked(int peer) const {
  const Peer& entry = peers_[static_cast<std::size_t>(peer)];
  const std::string end = entry.presence == Presence::kLeft ? " and has left the group" : "";
  if (!entry.seen) return "has not been seen in the group yet" + end;
  return fmt::format("was last seen in {}, {:.1f} s ago{}", describe(*entry.seen),
                     static_cast<double>(shared::now_ns() - entry.seen_at) * 1e-9, end);
}

void Membership::explain_loss(int peer) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kGrace, [&] {
      return failure_ || peers_[static_cast<std::size_t>(peer)].presence != Presence::kPresent;
    });
    auto failure = absence_locked(peer);
    if (!failure) {
      failure = {ErrorCode::kPeerLost, world_rank(peer),
                 fmt::format("rank {}: {}: the connection to rank {} broke; it {}",
                             world_rank(rank_), inside_, world_rank(peer), last_seen_locked(peer))};
    }
    if (!record_locked(std::move(failure))) return;
  }
  announce_failure();
}

bool Membership::record_locked(std::optional<Failure> failure) {
  if (failure_ || !failure) return false;
  failure_ = std::move(failure);
  changed_.notify_all();
  return true;
}

void Membership::announce_failure() noexcept {
  say_last_words();
  interrupt_();
}

void Membership::fail(ErrorCode code, int cause_rank, std::string message) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!record_locked(Failure{code, cause_rank, std::move(message)})) return;
  }
  announce_failure();
}

void Membership::abort(std::string_view reason) noexcept {
  std::array<char, 1024> text{};
  const auto end = fmt::format_to_n(text.data(), text.size() - 1, "rank {} gave up: {}",
                                    world_rank(rank_), reason);
  fail(ErrorCode::kPeerLost, world_rank(rank_),
       std::string(text.data(), std::min(end.size, text.size() - 1)));
}

void Membership::say_last_words() noexcept {
  const std::lock_guard lock(mutex_);
  if (std::exchange(spoken_, true)) return;
  Words words{.entered = entered_, .finished = finished_};
  if (failure_) {
    words.failed = 1;
    words.code = static_cast<std::int32_t>(failure_->code);
    words.cause_rank = failure_->cause_rank;
    failure_->message.copy(words.message.data(), words.message.size() - 1);
  }
  for (int other = 0; other < size(); ++other) {
    if (other != rank_) send_locked(other, words);
  }
}

void Membership::send_locked(int peer, const Words& words) noexcept {
  send_locked(peer, sent_.emplace_back(Outgoing{words, std::nullopt}));
}

// What was sent from there before has arrived, or never will.
void Membership::send_locked(int peer, Outgoing& outgoing) noexcept {
  if (peers_[static_cast<std::size_t>(peer)].presence != Presence::kPresent) return;
  const NoSigpipeScope no_sigpipe;
  try {
    outgoing.message.reset();
    outgoing.message = control_->send(peer, &outgoing.words, sizeof(Words), kControlTag);
  } catch (const std::exception&) {
    // It is gone, and its own watcher says so.
  }
}

std::optional<Error> Membership::failure() const {
  const std::lock_guard lock(mutex_);
  if (!failure_) return std::nullopt;
  return Error(failure_->code, failure_->message, failure_->cause_rank);
}

bool Membership::failed() const { return failure().has_value(); }

void Membership::await_failure() const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kGrace, [this] { return failure_.has_value(); });
}

void Membership::throw_if_failed(const std::string& what) const {
  const auto failure = this->failure();
  if (!failure) return;
  throw Error(failure->code(),
              fmt::format("rank {}: {} cannot go on: {}", world_rank(rank_), what, failure->what()),
              failure->rank());
}

}  // namespace fullshard::comm::c10d
