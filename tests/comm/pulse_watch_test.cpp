#include "comm/pulse_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <thread>
#include <vector>

namespace fullshard::comm::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr base::Duration kTimeout = milliseconds(500);
constexpr base::Duration kNever{};

/// Three ranks, as rank 0 sees the others.
class MadeUpPulse final : public shared::Pulse {
 public:
  void beat() noexcept override { ++beats_; }
  void rest() noexcept override { is_at_rest_ = true; }
  std::vector<Beats> beats() override {
    const int round = ++rounds_;
    std::vector<Beats> all = {{1, static_cast<std::uint64_t>(round)}};
    if (!left_) all.push_back({2, stopped_ ? 1U : static_cast<std::uint64_t>(round)});
    return all;
  }
  std::optional<base::Error> find_failure() override {
    if (!failed_) return std::nullopt;
    return base::Error(base::ErrorCode::kPeerLost, "rank 0: rank 2 is lost: it gave up", 2);
  }
  std::string account_of(int world_rank) override {
    return "an account of rank " + std::to_string(world_rank);
  }

  void stop() { stopped_ = true; }
  void leave() { left_ = true; }
  void fail() { failed_ = true; }
  bool is_at_rest() const { return is_at_rest_; }
  int own_beats() const { return beats_; }
  void await_beats(int count) const {
    while (beats_ < count) std::this_thread::sleep_for(milliseconds(1));
  }

 private:
  std::atomic<int> beats_ = 0;
  std::atomic<int> rounds_ = 0;
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> left_ = false;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> is_at_rest_ = false;
};

class Reports {
 public:
  std::function<void(const base::Error&)> function() {
    return [this](const base::Error& error) {
      EXPECT_EQ(error.code(), base::ErrorCode::kPeerLost);
      EXPECT_EQ(error.rank(), 2);
      text_ = error.what();
      ++count_;
    };
  }
  int count() const { return count_; }
  /// After await().
  const std::string& text() const { return text_; }
  void await() const {
    while (count_ == 0) std::this_thread::sleep_for(milliseconds(1));
  }

 private:
  std::string text_;
  std::atomic<int> count_ = 0;
};

std::unique_ptr<PulseWatch> watch_pulse(MadeUpPulse& pulse, base::Duration timeout,
                                        Reports& reports) {
  return std::make_unique<PulseWatch>(
      0, pulse, timeout, [&pulse] { return pulse.find_failure(); }, reports.function());
}

TEST(PulseWatch, ReportsARankThatShowsNothingAnyMoreOnce) {
  MadeUpPulse pulse;
  Reports reports;
  const auto watch = watch_pulse(pulse, kTimeout, reports);
  std::this_thread::sleep_for(3 * kTimeout / 2);
  EXPECT_EQ(reports.count(), 0);
  EXPECT_GT(pulse.own_beats(), 1);
  pulse.stop();
  reports.await();
  std::this_thread::sleep_for(3 * kTimeout / 2);
  EXPECT_EQ(reports.count(), 1);
  EXPECT_THAT(reports.text(), HasSubstr("rank 0: rank 2 is lost: it has shown no sign of life"));
  EXPECT_THAT(reports.text(), HasSubstr("s: an account of rank 2"));
}

TEST(PulseWatch, ReportsAFailureOfTheGroup) {
  MadeUpPulse pulse;
  Reports reports;
  const auto watch = watch_pulse(pulse, kTimeout, reports);
  pulse.fail();
  reports.await();
  EXPECT_THAT(reports.text(), HasSubstr("it gave up"));
}

TEST(PulseWatch, DoesNotMissARankThatHasLeft) {
  MadeUpPulse pulse;
  Reports reports;
  const auto watch = watch_pulse(pulse, kTimeout, reports);
  pulse.await_beats(3);
  pulse.leave();
  std::this_thread::sleep_for(3 * kTimeout);
  EXPECT_EQ(reports.count(), 0);
}

TEST(PulseWatch, MissesNobodyWithoutATimeoutButReportsFailures) {
  MadeUpPulse pulse;
  Reports reports;
  const auto watch = watch_pulse(pulse, kNever, reports);
  pulse.stop();
  pulse.await_beats(3);
  EXPECT_EQ(reports.count(), 0);
  pulse.fail();
  reports.await();
  EXPECT_THAT(reports.text(), HasSubstr("it gave up"));
}

TEST(PulseWatch, IsLeftAloneInAForkOfItsProcess) {
  MadeUpPulse pulse;
  Reports reports;
  auto watch = watch_pulse(pulse, kTimeout, reports);
  pulse.await_beats(1);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    watch.reset();
    _exit(pulse.is_at_rest() ? 1 : 0);
  }
  int status = -1;
  for (int i = 0; i < 1000 && waitpid(child, &status, WNOHANG) == 0; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(status, 0) << "the child hangs, or told the others that this rank rests";
  if (status == -1) kill(child, SIGKILL);
}

TEST(PulseWatch, EndsAtOnce) {
  MadeUpPulse pulse;
  Reports reports;
  const auto begin = base::Clock::now();
  { const auto watch = watch_pulse(pulse, std::chrono::hours(1), reports); }
  EXPECT_LT(base::seconds(base::Clock::now() - begin), 2.0);
  EXPECT_TRUE(pulse.is_at_rest());
}

}  // namespace
}  // namespace fullshard::comm::testing
