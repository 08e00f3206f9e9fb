#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>

#include "launcher/support.h"

// Which of several failures a job is said to have had.

namespace fullshard::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class Failing : public ::testing::Test {
 protected:
  TestFolder folder;
};

/// Shell functions: `wait_for NAME` until $DIR/NAME is there.
constexpr const char* kHead = "wait_for() { while [ ! -e $DIR/$1 ]; do sleep 0.01; done; }; ";

TEST_F(Failing, AllRanksAtZeroIsSuccess) {
  const Outcome outcome = run(folder.shell(3, "exit 0"));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
}

TEST_F(Failing, C5_OneRankEndsAllAndIsNamed) {
  const Outcome outcome = run(folder.shell(4, "[ $RANK = 2 ] && exit 3; exec sleep 1000"));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, StartsWith("fullshard: rank 2 ended with exit code 3 ("));
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
}

#ifdef THROWING_RANK
TEST_F(Failing, C5_ARankThatThrowsInTheForwardOfAStepEndsAll) {
  for (const char* backend : {"shm", "hosts", "gloo"}) {
    const std::string thrown = folder.path(backend);
    LaunchOptions options;
    options.nproc = 4;
    options.command = {THROWING_RANK, backend, thrown};
    const Outcome outcome = run(options);
    const auto since =
        std::filesystem::file_time_type::clock::now() - std::filesystem::last_write_time(thrown);
    EXPECT_LT(since, std::chrono::seconds(10)) << backend;
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("fullshard: rank 2 failed: bad sample 17 ("));
    const std::size_t first = outcome.err.find(" failed: ");
    EXPECT_EQ(outcome.err.substr(first - 6, 6), "rank 2") << outcome.err;
  }
}
#endif

TEST_F(Failing, ASignalIsNamed) {
  const Outcome outcome = run(folder.shell(2, "[ $RANK = 1 ] && kill -9 $$; exec sleep 1000"));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, StartsWith("fullshard: rank 1 was killed by SIGKILL ("));
}

TEST_F(Failing, AUsageErrorOfTheCauseIsTheJobs) {
  EXPECT_EQ(run(folder.shell(2, "[ $RANK = 1 ] && exit 2; exec sleep 1000")).exit_code, 2);
  const Outcome outcome =
      run(folder.shell(2,
                       "[ $RANK = 1 ] && exec $CHILD report configuration 'bad key'; "
                       "exec sleep 1000"));
  EXPECT_EQ(outcome.exit_code, 2);
}

TEST_F(Failing, M6_TheCauseComesBeforeThoseWhoNoticedItFirst) {
  const std::string script = std::string(kHead) +
                             "if [ $RANK = 2 ]; then wait_for lost0; wait_for lost1; wait_for "
                             "lost3; exec $CHILD report internal 'bad sample 17'; fi; "
                             "$CHILD report 'peer lost' 'rank 2 is gone'; touch $DIR/lost$RANK; "
                             "exec sleep 1000";
  LaunchOptions options = folder.shell(4, script);
  options.cause_wait = std::chrono::minutes(1);
  const Outcome outcome = run(options);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, StartsWith("fullshard: rank 2 failed: bad sample 17 ("));
  EXPECT_THAT(outcome.err, HasSubstr("then rank 0 failed: rank 2 is gone"));
  EXPECT_THAT(outcome.err, HasSubstr("then rank 3 failed: rank 2 is gone"));
}

TEST_F(Failing, OfTwoCausesTheEarlierWins) {
  const std::string script = std::string(kHead) +
                             "if [ $RANK = 1 ]; then $CHILD report internal first; touch "
                             "$DIR/done; exec sleep 1000; fi; wait_for done; "
                             "trap '' TERM; exec $CHILD report internal second";
  const Outcome outcome = run(folder.shell(2, script));
  EXPECT_THAT(outcome.err, StartsWith("fullshard: rank 1 failed: first ("));
}

TEST_F(Failing, WithoutACauseTheFirstToLoseARankIsNamed) {
  LaunchOptions options =
      folder.shell(2,
                   "[ $RANK = 1 ] && exec $CHILD report timeout 'waited for rank 0'; "
                   "exec sleep 1000");
  options.cause_wait = std::chrono::milliseconds(50);
  const Outcome outcome = run(options);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, StartsWith("fullshard: rank 1 failed: waited for rank 0 ("));
}

TEST_F(Failing, ADeathExplainsALossThatWasReportedBefore) {
  const std::string script = std::string(kHead) +
                             "if [ $RANK = 1 ]; then wait_for lost; kill -SEGV $$; fi; "
                             "$CHILD report 'peer lost' 'rank 1 is gone'; touch $DIR/lost; "
                             "exec sleep 1000";
  LaunchOptions options = folder.shell(2, script);
  options.cause_wait = std::chrono::minutes(1);
  const Outcome outcome = run(options);
  EXPECT_THAT(outcome.err, StartsWith("fullshard: rank 1 was killed by SIGSEGV ("));
  EXPECT_THAT(outcome.err, HasSubstr("then rank 0 failed: rank 1 is gone"));
}

TEST_F(Failing, AReportCountsEvenWhenTheRankEndsWithZero) {
  const Outcome outcome = run(folder.shell(1, "$CHILD report file 'disk is full'; exit 0"));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("disk is full"));
}

TEST_F(Failing, ALongMessageArrivesWhole) {
  const std::string message(100'000, 'x');
  LaunchOptions options = folder.shell(1, "");
  options.command = {LAUNCHER_CHILD, "report", "internal", message};
  EXPECT_THAT(run(options).err, HasSubstr(message));
}

}  // namespace
}  // namespace fullshard::launcher
