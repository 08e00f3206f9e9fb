// What the ranks of a group over messages know of each other, without the group.

#include "comm/c10d/membership.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "comm/c10d/gloo_backend.h"
#include "comm/c10d/greeting.h"
#include "comm/local/local_world.h"
#include "fullshard/rendezvous/store.h"
#include "support/forwarding_group.h"

namespace fullshard::comm::testing {
namespace {

using c10d::Membership;
using std::chrono::seconds;

constexpr std::array<int, 2> kMembers{0, 1};
constexpr seconds kLong{60};

/// Two ranks of a group, in one process. The first is looked at, and started by the test.
class Pair : public ::testing::Test {
 protected:
  Pair() {
    auto second = std::async(std::launch::async, [this] { return join(1, [] {}); });
    first_ = join(0, [this] { interrupted_.set_value(); });
    second_ = second.get();
    second_->start();
  }

  std::unique_ptr<Membership> join(int rank, std::function<void()> interrupt) {
    auto link = c10d::gloo_over_tcp("127.0.0.1")(store_, rank, kMembers, kLong, [] {});
    return std::make_unique<Membership>(std::move(link), rank,
                                        std::vector<int>(kMembers.begin(), kMembers.end()),
                                        std::move(interrupt), [] { return -1; });
  }

  void begin(Membership& rank, std::uint64_t number) {
    rank.enter(number, {shared::OperationKind::kBarrier, {"blocks.4", 3}});
  }

  void wait_for_failure() {
    while (!first_->failed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  rendezvous::Store store_ = rendezvous::Store::in_memory();
  std::promise<void> interrupted_;
  std::unique_ptr<Membership> first_;
  std::unique_ptr<Membership> second_;
};

// Who makes a Membership may not be ready for its calls before it has it.
TEST_F(Pair, NothingIsCalledBeforeTheStart) {
  begin(*first_, 1);
  second_->abort("out of ideas");
  auto interrupted = interrupted_.get_future();
  EXPECT_EQ(interrupted.wait_for(seconds(1)), std::future_status::timeout);
  first_->start();
  interrupted.wait();
}

TEST_F(Pair, ARankThatGivesUpEndsTheOperationThatItHasNotDone) {
  first_->start();
  begin(*first_, 1);
  second_->abort("out of ideas");
  interrupted_.get_future().wait();
  EXPECT_TRUE(first_->failed());
}

// All that the second had to send is there or on its way, so the operation may end well.
TEST_F(Pair, ARankThatGivesUpLetsTheOperationEndThatItHasDone) {
  first_->start();
  begin(*first_, 1);
  begin(*second_, 1);
  second_->leave_operation();
  second_->abort("out of ideas");
  wait_for_failure();
  first_->leave_operation();
  EXPECT_EQ(interrupted_.get_future().wait_for(seconds(3)), std::future_status::timeout);
  EXPECT_ANY_THROW(begin(*first_, 2));
}

// A third rank's part may never come: for instance of a host that is cut off, which only the second
// has noticed.
TEST_F(Pair, AnOperationThatDoesNotEndThenIsEnded) {
  first_->start();
  begin(*first_, 1);
  begin(*second_, 1);
  second_->leave_operation();
  second_->fail(base::ErrorCode::kPeerLost, 2, "rank 2 is lost");
  wait_for_failure();
  interrupted_.get_future().wait();
  EXPECT_EQ(first_->failure()->rank(), 2);
}

/// Remembers what its group is told to fail of.
class ToldOf final : public fullshard::testing::ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;
  void fail(const base::Error& failure) noexcept override {
    rank_ = failure.rank();
    ForwardingGroup::fail(failure);
  }
  int rank_of_failure() const { return rank_; }

 private:
  std::atomic<int> rank_ = -1;
};

/// The other rank of a group of two: it does its part of operations as the test says.
class OtherRank {
 public:
  OtherRank(const rendezvous::Store& store, const c10d::ConnectRanks& connect)
      : data_(connect(store.with_prefix("data"), 1, kMembers, kLong, [] {})),
        membership_(
            connect(store.with_prefix("control"), 1, kMembers, kLong, [] {}), 1,
            std::vector<int>(kMembers.begin(), kMembers.end()), [] {}, [] { return -1; }) {
    membership_.start();
  }

  void greet(int number, const shared::OperationRecord& record) {
    const auto operation = static_cast<std::uint64_t>(number);
    membership_.enter(operation, record);
    c10d::Greeting greeting(membership_, operation, record);
    c10d::Transfer transfer(*data_, number);
    greeting.exchange(transfer);
    membership_.leave_operation();
  }

  Membership& membership() { return membership_; }

 private:
  std::unique_ptr<c10d::Link> data_;
  Membership membership_;
};

// Its deadline passes while the operation is given time to end well; the ranks of its host are told
// why, and not only that it has left.
TEST(Grace, EndsForTheHostAsWellWhenTheOperationFails) {
  const auto store = rendezvous::Store::in_memory();
  const auto connect = c10d::gloo_over_tcp("127.0.0.1");
  const OpTag tag{"blocks.4", 3};
  constexpr std::array<std::int64_t, 2> kCounts{1, 1};
  std::array<float, 2> all{};
  auto other = std::async(std::launch::async, [&] {
    auto rank = std::make_unique<OtherRank>(store, connect);
    rank->greet(1, {shared::OperationKind::kBarrier, {"joining the group", -1}});
    shared::OperationRecord record(shared::OperationKind::kAllGather, Buffer{all.data(), 2}, tag);
    record.set_counts(kCounts);
    rank->greet(2, record);  // and sends nothing
    rank->membership().abort("out of ideas");
    return rank;
  });
  const CommOptions options{.timeout = seconds(1)};
  const auto inside = std::make_shared<ToldOf>(single_rank(options).mesh().all);
  c10d::C10dGroup group(
      store, connect, [] {}, 0, trace::GroupTrace::of_world(0, 2, options), {{0, 1}, inside},
      options);
  EXPECT_ANY_THROW(group.all_gather({all.data(), 1}, {all.data(), 2}, {}, tag).wait());
  EXPECT_EQ(inside->rank_of_failure(), 1);
  other.get();
}

}  // namespace
}  // namespace fullshard::comm::testing
