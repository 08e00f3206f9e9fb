#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/c10d/link.h"
#include "comm/shared/operation.h"
#include "comm/shared/pulse.h"
#include "fullshard/base/error.h"

namespace fullshard::comm::c10d {

/// Why a group can no longer be used.
struct Failure {
  base::ErrorCode code;
  int cause_rank;  ///< as in base::Error::rank
  std::string message;
};

/// Who takes part in a group, what each was last seen doing, and whether the group has failed.
///
/// Each rank keeps receives open from each other rank, on connections of their own, with a thread
/// that waits for them: there arrive the last words of a rank that leaves or gives up, at once and
/// whatever the data connections are busy with, and the questions of a roll call, which that thread
/// answers. When the connection ends without last words, the rank is lost. For the case that it
/// does not end, because a process is stopped or a cable cut, each rank asks the next one again and
/// again (beat). The first failure is the group's; it is told to all ranks and ends the operation
/// that is going on; where the rank that told of it had done its part of it before, after a time in
/// which that may end well. Any thread may call.
class Membership {
 public:
  /// `control` carries nothing else. `members[r]` is the world's number of the group's rank r.
  /// `interrupt` is called, from any thread, when the operation that is going on has to end;
  /// `waited_for` to learn whose message it waits for, -1 when for none. Neither before start().
  Membership(std::unique_ptr<Link> control, int rank, std::vector<int> members,
             std::function<void()> interrupt, std::function<int()> waited_for);

  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  /// Listens to the others from now on, to what they have said before as well. To be called once.
  void start();

  /// Says goodbye to the others and ends the connections; nothing is called from here afterwards.
  /// Never blocks on them. The destructor does it too.
  void close() noexcept;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  int world_rank(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& members() const { return members_; }

  /// This rank begins its operation `number`. Fails the group when a rank has left that would have
  /// to take part. Throws the group's failure.
  void enter(std::uint64_t number, const shared::OperationRecord& record);

  /// The operation has ended well.
  void leave_operation();

  /// `peer` was seen in an operation.
  void saw(int peer, const shared::OperationRecord& record);

  /// What a rank was last seen doing and how long ago, in words that follow its name.
  std::string last_seen(int peer) const;

  /// Waits until it is clear what became of a rank whose data connection broke, and makes it the
  /// group's failure.
  void explain_loss(int peer);

  /// Asks every rank whether it is there and whom it waits for, as this one waits for `waited_for`;
  /// returns when all have answered, at the latest after `grace`, or when the group has failed.
  void call_roll(int waited_for, base::Duration grace);

  /// A rank that has not left and did not answer the roll call; -1 when there is none.
  int find_silent() const;

  /// Whether the rank answered the roll call, and whom it waited for then; -1: for nobody, or for a
  /// rank of its host, in shared memory.
  bool answers(int peer) const;
  int waits_for(int peer) const;

  /// As those of shared::Pulse: this rank watches the next one that has not left, and asks it for a
  /// sign once it has answered the last time.
  void beat() noexcept;
  std::vector<shared::Pulse::Beats> beats() const;
  std::string account_of(int world_rank) const;

  /// Makes this the group's failure unless it already has one, tells the others, and interrupts.
  void fail(base::ErrorCode code, int cause_rank, std::string message) noexcept;

  /// Tells the others of the group's failure and interrupts, if that has not been done: when the
  /// operation that was going on has failed, it need not be given time to end well any more.
  void announce_failure() noexcept;

  /// This rank gives up.
  void abort(std::string_view reason) noexcept;

  /// The group's failure, if it has one.
  std::optional<base::Error> failure() const;

  /// Returns when it has one, at the latest after the time in which a rank that lives tells the
  /// reason for what it does.
  void await_failure() const;

  /// Throws it. `what` is the call that cannot be made.
  void throw_if_failed(const std::string& what) const;
  bool failed() const;

 private:
  enum class Presence { kPresent, kLeft, kLost };
  enum class Topic : std::int32_t { kLastWords, kQuestion, kAnswer, kPing, kPong };
  /// What ranks say to each other here; one message of fixed size.
  struct Words {
    Topic topic = Topic::kLastWords;
    std::int32_t waited_for = -1;  ///< of an answer
    std::uint64_t entered = 0;     ///< number of the last operation that it has begun
    std::uint64_t finished = 0;    ///< number of the last one that ended well
    std::int32_t failed = 0;       ///< whether the rest means something
    std::int32_t code = 0;
    std::int32_t cause_rank = -1;
    std::array<char, 2012> message{};
  };
  /// Receives open at a time. A rank that leaves does not wait until its last words are taken, so
  /// there is always one open for them: before them come at most a question, a ping, and an answer
  /// to each.
  static constexpr std::size_t kListening = 5;
  struct Outgoing {
    Words words;
    std::optional<Message> message;
  };
  struct Peer {
    Presence presence = Presence::kPresent;
    std::optional<shared::OperationRecord> seen;
    std::int64_t seen_at = 0;
    Words last_words;
    std::optional<Words> answer;
    std::uint64_t beats = 0;  ///< pings that it has answered
    Outgoing pong;            ///< to it; it has the last one when it pings again
    std::array<Words, kListening> incoming;
    std::deque<Message> listening;  ///< for `incoming`, in order, the oldest first
    std::thread watcher;
  };

  void open_receives(int peer);
  void watch(int peer);
  bool take(int peer, const Words& words);
  void answer(int peer);
  void take_beat(int peer, Topic topic);
  int next_present_locked() const;
  void judge(int peer, Presence presence);
  bool operation_ends(std::unique_lock<std::mutex>& lock);
  void send_locked(int peer, const Words& words) noexcept;
  void send_locked(int peer, Outgoing& outgoing) noexcept;
  bool all_answered_locked() const;
  bool has_answered_locked(int peer) const;
  std::string last_seen_locked(int peer) const;
  std::optional<Failure> absence_locked(int peer) const;
  bool record_locked(std::optional<Failure> failure);
  void say_last_words() noexcept;

  std::unique_ptr<Link> control_;
  int rank_;
  std::vector<int> members_;
  std::function<void()> interrupt_;
  std::function<int()> waited_for_;

  mutable std::mutex mutex_;  // guards what follows; taken before any other lock of the group
  mutable std::condition_variable changed_;
  std::deque<Peer> peers_;  // by rank; the one of this rank is not used
  std::optional<Failure> failure_;
  std::uint64_t entered_ = 0;  // the last operation begun here, and the last that ended well
  std::uint64_t finished_ = 0;
  std::string inside_;  // the operation that is going on, in words; empty between operations
  bool spoken_ = false;
  bool closing_ = false;
  int waited_for_before_ = -1;  // by the operation that timed out here
  int watched_ = -1;            // whom this rank pings
  bool pinging_ = false;        // and whether an answer is due
  Outgoing ping_;
  std::deque<Outgoing> sent_;
};

}  // namespace fullshard::comm::c10d
