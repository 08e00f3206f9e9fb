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
#include "fullshard/rendezvous/store.h"

namespace fullshard::comm::testing {
namespace {

using c10d::Membership;
using std::chrono::seconds;

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
    constexpr std::array<int, 2> kMembers{0, 1};
    auto link = c10d::gloo_over_tcp("127.0.0.1")(store_, rank, kMembers, seconds(60), [] {});
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

}  // namespace
}  // namespace fullshard::comm::testing
