#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "launcher/support.h"

// How jobs are stopped from outside, and what is left of them.

namespace fullshard::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class End : public ::testing::Test {
 protected:
  void wait_until_ready(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string name = "ready" + std::to_string(rank);
      wait_until([&] { return folder.has(name); }, name);
    }
  }

  pid_t pid_in(const std::string& name) { return std::stoi(folder.read(name)); }

  TestFolder folder;
};

/// Counts signal $1 in $DIR/got<rank> and ends with 0 a moment later.
std::string on_signal(const std::string& signal) {
  return "trap 'echo x >> $DIR/got$RANK; stop=1' " + signal +
         "; touch $DIR/ready$RANK; while [ -z \"$stop\" ]; do sleep 0.05; done; sleep 0.3; exit 0";
}

TEST_F(End, CtrlCIsPassedOnOnceAndGives130) {
  const pid_t job = launch_apart(folder.shell(3, on_signal("INT")));
  wait_until_ready(3);
  ::kill(job, SIGINT);
  EXPECT_EQ(wait_for(job), 130);
  for (const char* name : {"got0", "got1", "got2"}) EXPECT_EQ(folder.read(name), "x");
}

TEST_F(End, TermIsPassedOnAsTermAndGives143) {
  const pid_t job = launch_apart(folder.shell(2, on_signal("TERM")));
  wait_until_ready(2);
  ::kill(job, SIGTERM);
  EXPECT_EQ(wait_for(job), 143);
  EXPECT_EQ(folder.read("got1"), "x");
}

class IgnoredSignal : public End, public ::testing::WithParamInterface<int> {};

TEST_P(IgnoredSignal, ChangesNothing) {
  const pid_t job = launch_apart(folder.shell(2, on_signal("TERM")), "/dev/null", GetParam());
  wait_until_ready(2);
  ::kill(job, GetParam());
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_TRUE(alive(job));
  ::kill(job, SIGTERM);
  EXPECT_EQ(wait_for(job), 143);
  for (const char* name : {"got0", "got1"}) EXPECT_EQ(folder.read(name), "x");
}

// Under nohup, and in the background of a script.
INSTANTIATE_TEST_SUITE_P(Signals, IgnoredSignal, ::testing::Values(SIGHUP, SIGINT));

TEST_F(End, Usr2ReachesTheRanksThatListenAndEndsNone) {
  // Rank 1 does not listen; a shell can only once the signal is not ignored any more.
  std::ofstream(folder.path("listen.sh"))
      << "trap 'touch $DIR/got$RANK' USR2; touch $DIR/ready$RANK; "
         "while [ ! -e $DIR/stop ]; do sleep 0.05; done; exit 0";
  const pid_t job = launch_apart(folder.shell(
      2,
      "[ $RANK = 0 ] && exec env --default-signal=USR2 sh $DIR/listen.sh; touch $DIR/ready$RANK; "
      "while [ ! -e $DIR/stop ]; do sleep 0.05; done"));
  wait_until_ready(2);
  for (const char* round : {"first", "second"}) {
    ::kill(job, SIGUSR2);
    wait_until([&] { return std::filesystem::remove(folder.path("got0")); }, round);
  }
  std::filesystem::create_directory(folder.path("stop"));
  EXPECT_EQ(wait_for(job), 0);
}

TEST_F(End, ASecondCtrlCKills) {
  LaunchOptions options = folder.shell(
      2, "trap 'touch $DIR/deaf$RANK' INT; touch $DIR/ready$RANK; while :; do sleep 0.05; done");
  options.stop_grace = std::chrono::hours(1);
  const pid_t job = launch_apart(options, folder.path("err"));
  wait_until_ready(2);
  ::kill(job, SIGINT);
  wait_until([&] { return folder.has("deaf0") && folder.has("deaf1"); }, "the first signal");
  ::kill(job, SIGINT);
  EXPECT_EQ(wait_for(job), 130);
  EXPECT_THAT(folder.read("err"), HasSubstr("rank 1 had to be killed"));
}

TEST_F(End, RanksThatDoNotStopAreKilledAfterTheGracePeriod) {
  LaunchOptions options = folder.shell(
      2,
      "trap '' TERM; touch $DIR/ready$RANK; [ $RANK = 0 ] && exit 0; while :; do sleep 0.05; done");
  options.stop_grace = std::chrono::milliseconds(100);
  options.grace = std::chrono::hours(1);
  const pid_t job = launch_apart(options, folder.path("err"));
  wait_until_ready(2);
  ::kill(job, SIGTERM);
  EXPECT_EQ(wait_for(job), 143);
  EXPECT_EQ(folder.read("err"),
            "fullshard: rank 1 had to be killed\nfullshard: stopped by SIGTERM");
}

TEST_F(End, AFaultOfItsOwnWhileStoppingIsShown) {
  const pid_t job =
      launch_apart(folder.shell(1,
                                "trap 'exec $CHILD report file \"disk is full\"' INT; "
                                "touch $DIR/ready$RANK; while :; do sleep 0.05; done"),
                   folder.path("err"));
  wait_until_ready(1);
  ::kill(job, SIGINT);
  EXPECT_EQ(wait_for(job), 130);
  EXPECT_THAT(folder.read("err"), HasSubstr("rank 0 failed: disk is full"));
}

TEST_F(End, RanksThatLoseOthersWhileStoppingAreNoFailure) {
  const std::string script =
      "trap 'exec $CHILD report \"peer lost\" \"a rank left\"' INT; "
      "touch $DIR/ready$RANK; while :; do sleep 0.05; done";
  const pid_t job = launch_apart(folder.shell(2, script), folder.path("err"));
  wait_until_ready(2);
  ::kill(job, SIGINT);
  EXPECT_EQ(wait_for(job), 130);
  EXPECT_EQ(folder.read("err"), "fullshard: stopped by SIGINT");
}

TEST_F(End, M5_DeafRanksAndWhatTheyStartedAreKilled) {
  LaunchOptions options = folder.shell(
      2,
      "trap '' TERM; sleep 1000 & echo $! > $DIR/sleeper$RANK; echo $$ > $DIR/rank$RANK; "
      "touch $DIR/ready$RANK; "
      "while [ ! -e $DIR/ready0 ] || [ ! -e $DIR/ready1 ]; do sleep 0.01; done; "
      "[ $RANK = 1 ] && exit 3; while :; do sleep 0.05; done");
  options.grace = std::chrono::milliseconds(200);
  const Outcome outcome = run(options);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, StartsWith("fullshard: rank 1 ended with exit code 3 ("));
  EXPECT_THAT(outcome.err, HasSubstr("rank 0 had to be killed"));
  for (const char* name : {"sleeper0", "sleeper1", "rank0"}) {
    wait_until([&] { return !alive(pid_in(name)); }, std::string(name) + " to end");
  }
}

TEST_F(End, ARankThatSucceedsLeavesNothingBehind) {
  EXPECT_EQ(launch(folder.shell(2, "sleep 1000 & echo $! > $DIR/sleeper$RANK; exit 0")), 0);
  for (const char* name : {"sleeper0", "sleeper1"}) {
    wait_until([&] { return !alive(pid_in(name)); }, std::string(name) + " to end");
  }
}

TEST_F(End, M5_KillingTheLauncherEndsTheWholeTree) {
  const pid_t job = launch_apart(
      folder.shell(2,
                   "trap '' TERM HUP INT; sleep 1000 & echo $! > $DIR/sleeper$RANK; echo $$ > "
                   "$DIR/rank$RANK; touch $DIR/ready$RANK; while :; do sleep 0.05; done"));
  wait_until_ready(2);
  ::kill(job, SIGKILL);
  EXPECT_EQ(wait_for(job), 1000 + SIGKILL);
  for (const char* name : {"rank0", "rank1", "sleeper0", "sleeper1"}) {
    wait_until([&] { return !alive(pid_in(name)); }, std::string(name) + " to end");
  }
}

TEST_F(End, SuspendingTheJobSuspendsItsRanks) {
  const pid_t job = launch_apart(folder.shell(
      1,
      "while [ ! -e $DIR/stop ]; do echo x >> $DIR/beat; touch $DIR/ready$RANK; sleep 0.01; "
      "done"));
  wait_until_ready(1);
  const auto beats = [&] { return std::filesystem::file_size(folder.path("beat")); };
  ::kill(job, SIGTSTP);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(job), &info, WSTOPPED);
  const auto then = beats();
  ::usleep(200'000);
  EXPECT_EQ(beats(), then);
  ::kill(job, SIGCONT);
  wait_until([&] { return beats() > then; }, "the rank to go on");
  std::filesystem::create_directory(folder.path("stop"));
  EXPECT_EQ(wait_for(job), 0);
}

}  // namespace
}  // namespace fullshard::launcher
