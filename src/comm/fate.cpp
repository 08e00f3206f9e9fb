#include "comm/fate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "comm/pulse_watch.h"
#include "comm/shared/greeter.h"
#include "comm/shared/roll_call.h"

namespace fullshard::comm {
namespace {

using base::Error;
using base::ErrorCode;

bool is_of_the_job(const Error& error) {
  return error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kPeerLost ||
         error.code() == ErrorCode::kMismatch;
}

/// What the users of a group share: it and its fate. With the last of them the group ends, on the
/// thread of that one, so that it can tell whether an exception is the reason.
class Bond {
 public:
  Bond(std::shared_ptr<Fate> fate, std::shared_ptr<Group> group)
      : fate_(std::move(fate)), group_(std::move(group)) {}
  ~Bond() { fate_->forget(*group_); }
  Bond(const Bond&) = delete;
  Bond& operator=(const Bond&) = delete;

  Fate& fate() const { return *fate_; }
  Group& group() const { return *group_; }

 private:
  std::shared_ptr<Fate> fate_;
  std::shared_ptr<Group> group_;
};

std::optional<Error> failure_of(Group& group) {
  auto* const pulse = dynamic_cast<shared::Pulse*>(&group);
  return pulse == nullptr ? std::nullopt : pulse->find_failure();
}

// What is wrong with the caller's arguments is no matter of other groups, unless the group itself
// has failed, whatever of.
template <typename Call>
auto guarded(const Bond& bond, Call call) {
  try {
    return call();
  } catch (const Error& error) {
    if (!is_of_the_job(error)) {
      if (const auto failure = failure_of(bond.group())) bond.fate().fail(*failure);
      throw;
    }
    const Error explained = bond.fate().explain(error, &bond.group());
    bond.fate().fail(explained);
    throw explained;
  }
}

class BoundSignals final : public SignalBoard {
 public:
  BoundSignals(std::shared_ptr<Bond> bond, std::unique_ptr<SignalBoard> board)
      : bond_(std::move(bond)), board_(std::move(board)) {}

  void post(std::size_t index, std::uint64_t value, std::string_view operation,
            const OpTag& tag) override {
    board_->post(index, value, operation, tag);
  }
  std::uint64_t value(int rank, std::size_t index) const override {
    return board_->value(rank, index);
  }
  bool reached(std::size_t index, std::uint64_t value) const override {
    return board_->reached(index, value);
  }
  void wait(std::size_t index, std::uint64_t value, std::string_view operation,
            const OpTag& tag) override {
    guarded(*bond_, [&] { board_->wait(index, value, operation, tag); });
  }

 private:
  std::shared_ptr<Bond> bond_;
  std::unique_ptr<SignalBoard> board_;
};

class BoundGroup final : public Group, public shared::Greeter {
 public:
  BoundGroup(std::shared_ptr<Fate> fate, std::shared_ptr<Group> group)
      : bond_(std::make_shared<Bond>(std::move(fate), std::move(group))) {}

  /// Fails all groups of the fate when one has failed or a rank of this one shows no sign of life.
  void watch_pulse() {
    auto* const pulse = dynamic_cast<shared::Pulse*>(&group());
    if (pulse == nullptr) return;
    pulse_watch_ = std::make_unique<PulseWatch>(
        rank(), *pulse, options().heartbeat_timeout,
        [fate = &fate()] { return fate->find_failure(); },
        [fate = &fate()](const Error& failure) { fate->fail(failure); });
  }

  int rank() const override { return group().rank(); }
  int size() const override { return group().size(); }
  const CommOptions& options() const override { return group().options(); }
  bool shares_memory() const override { return group().shares_memory(); }

  Work all_gather(ConstBuffer mine, Buffer all, std::span<const std::int64_t> counts,
                  const OpTag& tag) override {
    return start([&] { return group().all_gather(mine, all, counts, tag); });
  }
  Work reduce_scatter(ConstBuffer all, Buffer mine, ReduceOp op,
                      std::span<const std::int64_t> counts, const OpTag& tag) override {
    return start([&] { return group().reduce_scatter(all, mine, op, counts, tag); });
  }
  Work all_reduce(Buffer inout, ReduceOp op, const OpTag& tag) override {
    return start([&] { return group().all_reduce(inout, op, tag); });
  }
  Work broadcast(Buffer inout, int root, const OpTag& tag) override {
    return start([&] { return group().broadcast(inout, root, tag); });
  }
  Work all_to_all(ConstBuffer send, std::span<const std::int64_t> send_counts, Buffer recv,
                  std::span<const std::int64_t> recv_counts, const OpTag& tag) override {
    return start([&] { return group().all_to_all(send, send_counts, recv, recv_counts, tag); });
  }
  void barrier(const OpTag& tag) override {
    guarded(*bond_, [&] { group().barrier(tag); });
  }
  void greet(const shared::OperationRecord& record) override {
    guarded(*bond_, [&] { greeter().greet(record); });
  }
  void look(const shared::OperationRecord& record) override {
    guarded(*bond_, [&] { greeter().look(record); });
  }
  int world_rank() const override { return greeter().world_rank(); }
  shared::Whereabouts whereabouts() const override { return greeter().whereabouts(); }

  std::unique_ptr<SharedSegment> allocate_shared(std::size_t bytes,
                                                 std::string_view purpose) override {
    return guarded(*bond_, [&] { return group().allocate_shared(bytes, purpose); });
  }
  std::unique_ptr<SignalBoard> allocate_signals(std::size_t counters,
                                                std::string_view purpose) override {
    return std::make_unique<BoundSignals>(
        bond_, guarded(*bond_, [&] { return group().allocate_signals(counters, purpose); }));
  }
  std::shared_ptr<Group> subgroup(std::span<const int> ranks) override {
    auto made = guarded(*bond_, [&] { return group().subgroup(ranks); });
    return made == nullptr ? nullptr : fate().bind(made);
  }

  void abort(std::string_view reason) noexcept override { fate().abort(reason); }
  void fail(const Error& failure) noexcept override { fate().fail(failure); }
  std::int64_t bytes_between_hosts() const override { return group().bytes_between_hosts(); }

 private:
  Fate& fate() const { return bond_->fate(); }
  Group& group() const { return bond_->group(); }
  shared::Greeter& greeter() const {
    if (auto* greeter = dynamic_cast<shared::Greeter*>(&group())) return *greeter;
    throw Error(ErrorCode::kMisuse, "this group cannot stand at the side of one of devices");
  }

  template <typename Call>
  Work start(Call call) {
    Work work = guarded(*bond_, call);
    if (work.done()) return work;
    return Work([bond = bond_, work]() mutable { guarded(*bond, [&] { work.wait(); }); },
                [work] { return work.done(); });
  }

  std::shared_ptr<Bond> bond_;
  std::unique_ptr<PulseWatch> pulse_watch_;  // the last member: ends before what it looks at
};

}  // namespace

Fate::Fate() : process_(getpid()) {}

std::shared_ptr<Group> Fate::bind(const std::shared_ptr<Group>& group) {
  auto bound = std::make_shared<BoundGroup>(shared_from_this(), group);
  bool is_world = false;
  std::optional<Error> failure;
  {
    const std::lock_guard lock(mutex_);
    failure = failure_;
    is_world = std::exchange(is_empty_, false);
    if (is_world) world_ = group;
    groups_.emplace(group.get(), group);
  }
  if (is_world) bound->watch_pulse();
  if (failure) group->fail(*failure);
  return bound;
}

std::vector<std::shared_ptr<Group>> Fate::living() noexcept {
  std::vector<std::shared_ptr<Group>> groups;
  const std::lock_guard lock(mutex_);
  for (const auto& [known, owner] : groups_) {
    if (auto group = owner.lock()) groups.push_back(std::move(group));
  }
  return groups;
}

// The world's group knows of all ranks; its own errors say already who does not answer.
Error Fate::explain(const Error& error, const Group* group) {
  if (error.code() != ErrorCode::kTimeout) return error;
  const auto world = [&] {
    const std::lock_guard lock(mutex_);
    return world_.lock();
  }();
  auto* const roll = dynamic_cast<shared::RollCall*>(world.get());
  if (roll == nullptr || world.get() == group) return error;
  const int silent =
      roll->find_silent(std::min(world->options().timeout, shared::kLongestRollCall));
  if (silent < 0 || silent == error.rank()) return error;
  return {
      error.code(),
      fmt::format("{}; the one to blame is rank {}, which does not answer", error.what(), silent),
      silent};
}

std::optional<Error> Fate::find_failure() {
  const auto [failure, of] = find_raw_failure();
  if (!failure) return std::nullopt;
  return explain(*failure, of);
}

// Holds the mutex, not the groups: the last to let go of a group must not be the thread that looks.
std::pair<std::optional<Error>, const Group*> Fate::find_raw_failure() {
  const std::lock_guard lock(mutex_);
  for (const auto& [group, owner] : groups_) {
    if (auto failure = failure_of(*group)) return {std::move(failure), group};
  }
  return {};
}

void Fate::forget(Group& group) noexcept {
  if (getpid() != process_) return;  // a fork, where the mutex may be that of a thread left behind
  const std::lock_guard lock(mutex_);
  groups_.erase(&group);
}

void Fate::fail(const Error& failure) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = failure;
  }
  for (const auto& group : living()) group->fail(failure);
}

void Fate::abort(std::string_view reason) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = Error(ErrorCode::kPeerLost, std::string(reason));
  }
  for (const auto& group : living()) group->abort(reason);
}

}  // namespace fullshard::comm
