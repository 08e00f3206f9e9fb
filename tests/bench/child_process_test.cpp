#include "bench/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "bench/error_of.h"

namespace fullshard::bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr base::Duration kLong = std::chrono::minutes(2);

Invocation shell(const std::string& script) { return {{"sh", "-c", script}, {}, {}}; }

ChildEnd run(const Invocation& invocation) {
  const HeldSignals signals;
  ChildProcess child(invocation, signals);
  EXPECT_TRUE(child.wait(kLong));
  return child.end();
}

TEST(ChildProcess, TellsOutputErrorsAndExitCode) {
  const ChildEnd end = run(shell("echo out; echo err >&2; exit 3"));
  EXPECT_EQ(end.output, "out\n");
  EXPECT_EQ(end.errors, "err\n");
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_GT(end.wall_seconds, 0);
}

TEST(ChildProcess, OutputLargerThanAnyPipeDoesNotStopIt) {
  EXPECT_EQ(run(shell("head -c 3000000 /dev/zero")).output.size(), 3000000u);
}

TEST(ChildProcess, EndedByASignalHasTheShellsExitCode) {
  EXPECT_EQ(run(shell("kill -KILL $$")).exit_code, 128 + SIGKILL);
}

TEST(ChildProcess, CountsCpuTimeOfItsOwnChildren) {
  const ChildEnd end = run(shell("sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'; :"));
  EXPECT_GT(end.cpu_seconds, 0);
}

TEST(ChildProcess, HasOurEnvironmentWithItsOwnChanges) {
  ::setenv("BENCH_TEST_KEPT", "kept", 1);
  ::setenv("BENCH_TEST_GONE", "gone", 1);
  Invocation invocation = shell("echo $BENCH_TEST_KEPT,$BENCH_TEST_GONE,$BENCH_TEST_NEW");
  invocation.environment = {{"BENCH_TEST_NEW", "new"}};
  invocation.unset = {"BENCH_TEST_GONE"};
  EXPECT_EQ(run(invocation).output, "kept,,new\n");
}

TEST(ChildProcess, AProgramThatIsNotThereIsNamed) {
  const HeldSignals signals;
  const base::Error error = error_of([&] { ChildProcess({{"/nowhere/python"}, {}, {}}, signals); });
  EXPECT_EQ(error.code(), base::ErrorCode::kSystem);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("/nowhere/python"), HasSubstr("No such file")));
}

TEST(ChildProcess, WaitEndsBeforeALongChild) {
  const HeldSignals signals;
  ChildProcess child(shell("exec sleep 1000"), signals);
  EXPECT_FALSE(child.wait(std::chrono::milliseconds(1)));
}

TEST(ChildProcess, AStopSignalEndsTheChildAndIsTold) {
  const HeldSignals signals;
  ChildProcess child(
      shell("trap 'echo stopped; exit 0' TERM; echo ready; while :; do sleep 0.01; done"), signals);
  ::kill(::getpid(), SIGINT);
  try {
    child.wait(kLong);
    ADD_FAILURE() << "the signal was not noticed";
  } catch (const Stopped& stopped) {
    EXPECT_EQ(stopped.signal, SIGINT);
  }
  EXPECT_TRUE(child.wait(kLong));
}

TEST(ChildProcess, LeavesNoProcessOfItsGroupBehind) {
  const ChildEnd end = run(shell("sleep 1000 & echo $!"));
  const pid_t left = std::stoi(end.output);
  // It is dead at once, but somebody has to reap it.
  while (::kill(left, 0) == 0) ::usleep(1000);
  EXPECT_EQ(errno, ESRCH);
}

TEST(LastLines, KeepsTheEnd) {
  EXPECT_EQ(last_lines("a\nb\nc\n", 2), "b\nc");
  EXPECT_EQ(last_lines("a\nb\nc", 1), "c");
  EXPECT_EQ(last_lines("a\nb\n\n\n", 9), "a\nb");
  EXPECT_EQ(last_lines("\nx\n", 3), "\nx");
  EXPECT_EQ(last_lines("\n\n", 3), "");
  EXPECT_EQ(last_lines("", 3), "");
}

}  // namespace
}  // namespace fullshard::bench
