#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cstdlib>

#include "fullshard/base/error.h"
#include "launcher/listener.h"
#include "launcher/support.h"

namespace fullshard::launcher {
namespace {

using ::testing::HasSubstr;

class Start : public ::testing::Test {
 protected:
  TestFolder folder;
};

base::Error error_of(const LaunchOptions& options) {
  try {
    launch(options);
  } catch (const base::Error& error) {
    return error;
  }
  return {base::ErrorCode::kInternal, "nothing was thrown"};
}

int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

TEST_F(Start, EachRankLearnsWhoItIs) {
  ::unsetenv("OMP_NUM_THREADS");
  LaunchOptions options = folder.shell(
      3,
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $OMP_NUM_THREADS "
      "${FULLSHARD_STORE_FD:+store} > $DIR/$RANK; echo $MASTER_PORT > $DIR/port$RANK");
  options.threads_per_rank = 5;
  EXPECT_EQ(launch(options), 0);
  EXPECT_EQ(folder.read("0"), "0 3 0 3 127.0.0.1 5 store");
  EXPECT_EQ(folder.read("1"), "1 3 1 3 127.0.0.1 5");
  EXPECT_EQ(folder.read("2"), "2 3 2 3 127.0.0.1 5");
  EXPECT_GT(std::stoi(folder.read("port0")), 0);
  EXPECT_EQ(folder.read("port0"), folder.read("port2"));
}

TEST_F(Start, ThreadsThatTheUserSetAreKept) {
  ::setenv("OMP_NUM_THREADS", "7", 1);
  LaunchOptions options = folder.shell(1, "echo $OMP_NUM_THREADS > $DIR/threads");
  options.threads_per_rank = 5;
  EXPECT_EQ(launch(options), 0);
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(folder.read("threads"), "7");
}

TEST_F(Start, WhatAnOuterJobSaidIsReplaced) {
  ::setenv("RANK", "9", 1);
  ::setenv(kStoreFdVariable, "99", 1);
  const int code = launch(folder.shell(2, "echo $RANK ${FULLSHARD_STORE_FD} > $DIR/$RANK"));
  ::unsetenv("RANK");
  ::unsetenv(kStoreFdVariable);
  EXPECT_EQ(code, 0);
  EXPECT_EQ(folder.read("1"), "1");
  EXPECT_NE(folder.read("0"), "0 99");
}

TEST_F(Start, RankZeroListensBeforeAnyRankRuns) {
  EXPECT_EQ(launch(folder.shell(4, "exec $CHILD exchange")), 0);
}

TEST_F(Start, AnExplicitPortIsUsed) {
  const std::uint16_t port = listen_on(0).port;  // free again at once
  LaunchOptions options = folder.shell(2, "echo $MASTER_PORT > $DIR/$RANK; exec $CHILD exchange");
  options.port = port;
  EXPECT_EQ(launch(options), 0);
  EXPECT_EQ(folder.read("1"), std::to_string(port));
}

TEST_F(Start, M1_ABusyPortIsNamedAndNothingStarts) {
  const Listener other = listen_on(0);
  LaunchOptions options = folder.shell(2, "touch $DIR/started");
  options.port = other.port;
  const base::Error error = error_of(options);
  EXPECT_EQ(error.code(), base::ErrorCode::kSystem);
  EXPECT_THAT(error.what(), HasSubstr("port " + std::to_string(other.port)));
  EXPECT_FALSE(folder.has("started"));
}

TEST_F(Start, M1_EightJobsStartAtTheSameInstant) {
  std::vector<pid_t> jobs;
  for (int job = 0; job < 8; ++job) {
    jobs.push_back(launch_apart(
        folder.shell(2, "[ $RANK = 1 ] && echo $MASTER_PORT > $DIR/$PPID; exec $CHILD exchange")));
  }
  for (const pid_t job : jobs) EXPECT_EQ(wait_for(job), 0);
  for (const pid_t job : jobs) {
    EXPECT_TRUE(folder.has(std::to_string(job)));
  }
}

TEST_F(Start, AProgramThatCannotRunIsNamed) {
  LaunchOptions options = folder.shell(2, "");
  options.command = {"/nowhere/fullshard-rank"};
  const base::Error error = error_of(options);
  EXPECT_EQ(error.code(), base::ErrorCode::kSystem);
  EXPECT_THAT(error.what(), HasSubstr("'/nowhere/fullshard-rank': No such file"));
}

TEST_F(Start, RefusesNoRanksAndNoCommand) {
  LaunchOptions options = folder.shell(0, "");
  EXPECT_EQ(error_of(options).code(), base::ErrorCode::kInvalidArgument);
  options.nproc = 1;
  options.command.clear();
  EXPECT_EQ(error_of(options).code(), base::ErrorCode::kInvalidArgument);
}

TEST_F(Start, StandardInputIsEmpty) {
  EXPECT_EQ(launch(folder.shell(2, "cat > $DIR/$RANK")), 0);
  EXPECT_TRUE(folder.has("0"));
  EXPECT_EQ(folder.read("0") + folder.read("1"), "");
}

TEST_F(Start, RanksInheritOnlyWhatTheyNeed) {
  // ls itself holds one descriptor for the folder it lists.
  EXPECT_EQ(launch(folder.shell(2, "ls /proc/self/fd | wc -l > $DIR/$RANK")), 0);
  const int at_rank_1 = std::stoi(folder.read("1"));
  EXPECT_EQ(std::stoi(folder.read("0")), at_rank_1 + 1);
}

TEST_F(Start, LeavesNoDescriptorNoChildAndNoSignalMask) {
  const int before = open_descriptors();
  EXPECT_EQ(launch(folder.shell(3, "exit 0")), 0);
  run(folder.shell(3, "exit 3"));
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGINT), 0);
}

}  // namespace
}  // namespace fullshard::launcher
