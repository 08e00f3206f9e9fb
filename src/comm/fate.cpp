#include "comm/fate.h"

#include <fmt/format.h>

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

std::optional<Error> failure_of(Group& group) {
  auto* const pulse = dynamic_cast<shared::Pulse*>(&group);
  return pulse == nullptr ? std::nullopt : pulse->find_failure();
}

// What is wrong with the caller's arguments is no matter of other groups, unless the group itself
// has failed, whatever of.
template <typename Call>
auto guarded(Fate& fate, Group* group, Call call) {
  try {
    return call();
  } catch (const Error& error) {
    if (!is_of_the_job(error)) {
      if (const auto failure = failure_of(*group)) fate.fail(*failure);
      throw;
    }
    const Error explained = fate.explain(error, group);
    fate.fail(explained);
    throw explained;
  }
}

class BoundSignals final : public SignalBoard {
 public:
  BoundSignals(std::shared_ptr<Fate> fate, std::shared_ptr<Group> group,
               std::unique_ptr<SignalBoard> board)
      : fate_(std::move(fate)), group_(std::move(group)), board_(std::move(board)) {}

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
    guarded(*fate_, group_.get(), [&] { board_->wait(index, value, operation, tag); });
  }

 private:
  std::shared_ptr<Fate> fate_;
  std::shared_ptr<Group> group_;
  std::unique_ptr<SignalBoard> board_;
};

class BoundGroup final : public Group, public shared::Greeter {
 public:
  BoundGroup(std::shared_ptr<Fate> fate, std::shared_ptr<Group> group)
      : fate_(std::move(fate)), group_(std::move(group)) {}

  /// Fails all groups of the fate when this one has failed or a rank of it shows no sign of life.
  void watch_pulse() {
    auto* const pulse = dynamic_cast<shared::Pulse*>(group_.get());
    if (pulse == nullptr) return;
    pulse_watch_ = std::make_unique<PulseWatch>(
        rank(), *pulse, options().heartbeat_timeout,
        [fate = fate_.get()](const Error& failure) { fate->fail(failure); });
  }

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const CommOptions& options() const override { return group_->options(); }
  bool shares_memory() const override { return group_->shares_memory(); }

  Work all_gather(ConstBuffer mine, Buffer all, std::span<const std::int64_t> counts,
                  const OpTag& tag) override {
    return start([&] { return group_->all_gather(mine, all, counts, tag); });
  }
  Work reduce_scatter(ConstBuffer all, Buffer mine, ReduceOp op,
                      std::span<const std::int64_t> counts, const OpTag& tag) override {
    return start([&] { return group_->reduce_scatter(all, mine, op, counts, tag); });
  }
  Work all_reduce(Buffer inout, ReduceOp op, const OpTag& tag) override {
    return start([&] { return group_->all_reduce(inout, op, tag); });
  }
  Work broadcast(Buffer inout, int root, const OpTag& tag) override {
    return start([&] { return group_->broadcast(inout, root, tag); });
  }
  Work all_to_all(ConstBuffer send, std::span<const std::int64_t> send_counts, Buffer recv,
                  std::span<const std::int64_t> recv_counts, const OpTag& tag) override {
    return start([&] { return group_->all_to_all(send, send_counts, recv, recv_counts, tag); });
  }
  void barrier(const OpTag& tag) override {
    guarded(*fate_, group_.get(), [&] { group_->barrier(tag); });
  }
  void greet(const shared::OperationRecord& record) override {
    guarded(*fate_, group_.get(), [&] { greeter().greet(record); });
  }
  void look(const shared::OperationRecord& record) override {
    guarded(*fate_, group_.get(), [&] { greeter().look(record); });
  }

  std::unique_ptr<SharedSegment> allocate_shared(std::size_t bytes,
                                                 std::string_view purpose) override {
    return guarded(*fate_, group_.get(), [&] { return group_->allocate_shared(bytes, purpose); });
  }
  std::unique_ptr<SignalBoard> allocate_signals(std::size_t counters,
                                                std::string_view purpose) override {
    return std::make_unique<BoundSignals>(fate_, group_, guarded(*fate_, group_.get(), [&] {
                                            return group_->allocate_signals(counters, purpose);
                                          }));
  }
  std::shared_ptr<Group> subgroup(std::span<const int> ranks) override {
    auto group = guarded(*fate_, group_.get(), [&] { return group_->subgroup(ranks); });
    return group == nullptr ? nullptr : fate_->bind(group);
  }

  void abort(std::string_view reason) noexcept override { fate_->abort(reason); }
  void fail(const Error& failure) noexcept override { fate_->fail(failure); }
  std::int64_t bytes_between_hosts() const override { return group_->bytes_between_hosts(); }

 private:
  shared::Greeter& greeter() const {
    if (auto* greeter = dynamic_cast<shared::Greeter*>(group_.get())) return *greeter;
    throw Error(ErrorCode::kMisuse, "this group cannot stand at the side of one of devices");
  }

  template <typename Call>
  Work start(Call call) {
    Work work = guarded(*fate_, group_.get(), call);
    if (work.done()) return work;
    return Work([fate = fate_, group = group_,
                 work]() mutable { guarded(*fate, group.get(), [&] { work.wait(); }); },
                [work] { return work.done(); });
  }

  std::shared_ptr<Fate> fate_;
  std::shared_ptr<Group> group_;
  std::unique_ptr<PulseWatch> pulse_watch_;  // the last member: ends before what it looks at
};

}  // namespace

std::shared_ptr<Group> Fate::bind(const std::shared_ptr<Group>& group) {
  auto bound = std::make_shared<BoundGroup>(shared_from_this(), group);
  bool is_world = false;
  std::optional<Error> failure;
  {
    const std::lock_guard lock(mutex_);
    failure = failure_;
    std::erase_if(groups_, [](const std::weak_ptr<Group>& known) { return known.expired(); });
    is_world = std::exchange(is_empty_, false);
    if (is_world) world_ = group;
    groups_.push_back(group);
  }
  if (is_world) bound->watch_pulse();
  if (failure) group->fail(*failure);
  return bound;
}

std::vector<std::shared_ptr<Group>> Fate::living() noexcept {
  std::vector<std::shared_ptr<Group>> groups;
  const std::lock_guard lock(mutex_);
  for (const auto& known : groups_) {
    if (auto group = known.lock()) groups.push_back(std::move(group));
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
