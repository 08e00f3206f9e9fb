#include "fullshard/engine/entry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include "fullshard/config/json.h"
#include "trainer/small_run.h"

namespace fullshard::testing {
namespace {

/// What a call of the entry point came to.
struct Outcome {
  int code;
  std::string out;
  std::string err;
};

class Entry : public ::testing::Test {
 protected:
  Entry() : config(small_config(folder)) {
    config.comm.backend = config::Backend::kLocal;
    config.job.nproc_per_node = 2;
    config.job.threads_per_rank = 1;
  }

  Outcome call(const std::string& json) const {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int code = fullshard_engine_train(json.c_str());
    return {code, ::testing::internal::GetCapturedStdout(),
            ::testing::internal::GetCapturedStderr()};
  }

  Outcome train() const { return call(config::to_json(config)); }

  const TemporaryFolder folder;
  config::TrainConfig config;
};

TEST_F(Entry, TrainsWithRanksAsThreads) {
  const Outcome outcome = train();
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out,
              ::testing::HasSubstr("2 threads of one process, 1 computing thread each"));
  EXPECT_THAT(outcome.out, ::testing::HasSubstr("20 steps in "));
  EXPECT_EQ(outcome.err, "");
}

TEST_F(Entry, TrainsAlone) {
  config.job.nproc_per_node = 1;
  const Outcome outcome = train();
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, ::testing::HasSubstr("20 steps in "));
}

TEST_F(Entry, TellsAnErrorOnceAndReturnsOne) {
  config.data.path = folder.path("absent.txt");
  const Outcome outcome = train();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, ::testing::StartsWith("fullshard: text file"));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
}

TEST_F(Entry, ReturnsTwoForAConfigurationThatCannotBeUsed) {
  EXPECT_EQ(call(R"({"training": {"stepz": 3}})").code, 2);
  config.training.seq_len = 100'000;
  EXPECT_EQ(train().code, 2);
}

class EntrySignal : public Entry, public ::testing::WithParamInterface<std::pair<int, int>> {};

TEST_P(EntrySignal, StopsAllRanksAtAStepAndSaysSo) {
  const auto [signal, code] = GetParam();
  config.training.steps = 1'000'000;
  config.metrics.jsonl = folder.path("steps.jsonl");
  std::jthread sender([&, number = signal] {
    while (read_file(config.metrics.jsonl).empty()) std::this_thread::yield();
    ::kill(::getpid(), number);
  });
  const Outcome outcome = train();
  EXPECT_EQ(outcome.code, code);
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("stopped by SIG[A-Z]+ after step [0-9,]+ of"));
}

INSTANTIATE_TEST_SUITE_P(Signals, EntrySignal,
                         ::testing::Values(std::pair(SIGINT, 130), std::pair(SIGTERM, 143)));

}  // namespace
}  // namespace fullshard::testing
