#include "fullshard/bench/step_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/captured.h"
#include "bench/error_of.h"
#include "support/temporary_folder.h"

// The order of things, with small scripts in place of what is measured.

namespace fullshard::bench {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Measures a StepSpec as the executable would: sharded in twice the time, and by FAULT wrongly.
constexpr const char* kMeasure = R"(
import json, os, sys, time
spec = json.loads(sys.argv[2])
role = "sharded" if spec["sharded"] else "plain"
with open(sys.argv[1] + "/order", "a") as order: order.write(role + (" gate" if spec["memory_gate"] else "") + "\n")
fault = os.environ.get("FAULT", "")
if fault == "fails" and spec["sharded"]:
    print("\n".join(f"line {i}" for i in range(100)), file=sys.stderr)
    sys.exit(7)
if spec["memory_gate"] and fault != "no gate":
    for rank in reversed(range(spec["ranks"] if spec["sharded"] else 1)):
        if rank == 0 or not os.fork():
            open(f"{spec['memory_gate']}/{os.getpid()}.pid", "w").close()
            while not os.path.exists(spec["memory_gate"] + "/go"): time.sleep(0.001)
            if rank > 0: time.sleep(0.2); os._exit(0)
    held = b"x" * (8 << 20)
    time.sleep(0.2)
step = 0.2 if spec["sharded"] else 0.1
loss = 5.5 if fault != "differs" or not spec["sharded"] else 5.6
details = dict(losses=[6.0] * (spec["steps"] - 1) + [loss], steps_s=[step] * spec["steps"], grad_norm=2.0,
               parameters=123, torch="2.11.0")
if spec["sharded"]: details["counters"] = dict(exposed_s=0.01, peak_unsharded_bytes=1, peak_unreduced_gradient_bytes=1, reduction_s=0.005, owned_bytes=[3, 1], units=[])
print(json.dumps(dict(step_s=step, tok_s=100 / step, loss=loss, fwd=0.1, bwd=0.1, opt=0.1, details=details)))
)";

/// The peer: a `python` that notes its arguments and the variables it was given.
constexpr const char* kPython = R"(#!/bin/sh
echo "$*" | sed "s/-c import os, .*__main__')/-c .../" >> "$BENCH_TEST_FOLDER/calls"
echo "peer" >> "$BENCH_TEST_FOLDER/order"
echo "threads $OMP_NUM_THREADS rank '$RANK'" >> "$BENCH_TEST_FOLDER/variables"
if [ "$FAULT" = "peer fails once" ] && [ ! -e "$BENCH_TEST_FOLDER/failed" ]; then
  : > "$BENCH_TEST_FOLDER/failed"; exit 134
fi
if [ "$FAULT" = "peer fails later" ] && [ $(grep -c peer "$BENCH_TEST_FOLDER/order") -gt 1 ]; then exit 9; fi
if [ "$FAULT" = "peer fails" ]; then echo "no module named torch" >&2; exit 1; fi
if [ -n "$PEER_MEM_DIR" ]; then
  sleep 1000 &
  for pid in $$ $!; do : > "$PEER_MEM_DIR/$pid.pid"; done
  while [ ! -e "$PEER_MEM_DIR/go" ]; do sleep 0.01; done
  sleep 0.2
fi
echo 'a line of text'
echo '{"mode": "x", "step_s": 0.4, "tok_s": 250.0, "loss": 10.9}'
)";

class StepBench : public ::testing::Test {
 protected:
  StepBench() {
    options_ = {.spec = {.shape = named_shape("gpt", "c"), .ranks = 2, .steps = 3},
                .shape_name = "c",
                .pairs = 2,
                .memory = false,
                .measure = {"/usr/bin/python3", "-c", kMeasure, folder_.string()}};
    ::setenv("BENCH_TEST_FOLDER", folder_.c_str(), 1);
    ::unsetenv("FAULT");
  }

  ~StepBench() override { ::unsetenv("FAULT"); }

  void add_peer(std::vector<std::string> modes) {
    const std::filesystem::path python = folder_ / "python";
    std::ofstream(python) << kPython;
    std::filesystem::permissions(python, std::filesystem::perms::owner_all);
    std::ofstream(folder_ / "script.py") << "";
    options_.peer = folder_ / "script.py";
    options_.peer_python = python;
    options_.peer_modes = std::move(modes);
  }

  int run() { return run_step_bench(options_, {report_.file(), progress_.file(), false}); }

  std::vector<std::string> lines(const char* name) const {
    std::vector<std::string> all;
    std::ifstream file(folder_ / name);
    for (std::string line; std::getline(file, line);) all.push_back(line);
    return all;
  }

  const fullshard::testing::TemporaryFolder temporary_;
  const std::filesystem::path& folder_ = temporary_.path();
  StepBenchOptions options_;
  const Captured report_;
  const Captured progress_;
};

TEST_F(StepBench, RunsInTurnAndTurnsTheOrderRound) {
  options_.pairs = 3;
  EXPECT_EQ(run(), 0);
  EXPECT_THAT(lines("order"),
              ElementsAre("plain", "sharded", "sharded", "plain", "plain", "sharded"));
  EXPECT_THAT(report_.text(), HasSubstr("0.500 x"));
  EXPECT_THAT(report_.text(), HasSubstr("agree"));
}

TEST_F(StepBench, MeasuresMemoryInRunsOfTheirOwn) {
  options_.memory = true;
  options_.pairs = 1;
  options_.json = folder_ / "all.json";
  EXPECT_EQ(run(), 0);
  EXPECT_THAT(lines("order"), ElementsAre("plain gate", "sharded gate", "plain", "sharded"));
  const auto json = nlohmann::json::parse(std::ifstream(options_.json));
  for (const auto& contender : json["contenders"]) {
    EXPECT_GT(contender["memory"]["above_base_bytes"], 7 << 20);
    EXPECT_GT(contender["memory"]["samples"], 0);
  }
}

TEST_F(StepBench, RunsThePeerWithTheSameShape) {
  add_peer({"fsdp2", "single"});
  options_.pairs = 1;
  options_.memory = true;
  options_.spec.threads = 3;
  ::setenv("RANK", "5", 1);
  EXPECT_EQ(run(), 0);
  ::unsetenv("RANK");
  const std::string script = options_.peer;
  const std::string python = options_.peer_python;
  const std::string shape = "--layers 6 --dim 384 --heads 6 --vocab 256 --seq 256 --batch ";
  const std::string ranks =
      "-m torch.distributed.run --standalone --nproc-per-node 2 --no-python " + python +
      " -c ... " + script + " --mode fsdp2 " + shape + "4 --steps 3";
  const std::string one = "-c ... " + script + " --mode single " + shape + "8 --steps 3";
  EXPECT_THAT(lines("calls"), ElementsAre(ranks, one, ranks, one));
  EXPECT_THAT(lines("variables"), ElementsAre("threads 3 rank ''", "threads 6 rank ''",
                                              "threads 3 rank ''", "threads 6 rank ''"));
  EXPECT_THAT(report_.text(), HasSubstr("peer fsdp2"));
  EXPECT_THAT(report_.text(), HasSubstr("10.90000"));
}

TEST_F(StepBench, APeerThatFailsIsShownWithWhatItSaid) {
  add_peer({"ddp"});
  ::setenv("FAULT", "peer fails", 1);
  const base::Error error = error_of([this] { run(); });
  EXPECT_EQ(error.code(), base::ErrorCode::kSystem);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("'peer ddp' ended with exit code 1"),
                                  HasSubstr("no module named torch")));
  EXPECT_THAT(report_.text(), IsEmpty());
}

TEST_F(StepBench, APeersRunThatFailsIsMadeAgainOnce) {
  add_peer({"ddp"});
  options_.pairs = 1;
  options_.json = folder_ / "all.json";
  ::setenv("FAULT", "peer fails once", 1);
  EXPECT_EQ(run(), 0);
  EXPECT_THAT(lines("order"), ElementsAre("plain", "sharded", "peer", "peer"));
  EXPECT_THAT(progress_.text(),
              HasSubstr("[3/3] round 1 of 1, peer ddp: failed with exit code 134"));
  EXPECT_THAT(report_.text(), HasSubstr("1 of the runs of 'peer ddp' failed"));
  const auto json = nlohmann::json::parse(std::ifstream(options_.json));
  EXPECT_EQ(json["contenders"][2]["failed_runs"], 1);
}

TEST_F(StepBench, CompleteRoundsAreShownWhenALaterRunFails) {
  add_peer({"ddp"});
  options_.pairs = 3;
  options_.json = folder_ / "all.json";
  ::setenv("FAULT", "peer fails later", 1);
  EXPECT_THAT(error_of([this] { run(); }).what(), HasSubstr("exit code 9"));
  EXPECT_THAT(report_.text(), HasSubstr("only 1 of 3 rounds"));
  const auto json = nlohmann::json::parse(std::ifstream(options_.json));
  for (const auto& contender : json["contenders"]) EXPECT_EQ(contender["runs"].size(), 1u);
}

TEST_F(StepBench, ARunThatFailsIsShownWithTheEndOfWhatItSaid) {
  ::setenv("FAULT", "fails", 1);
  const base::Error error = error_of([this] { run(); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("'sharded' ended with exit code 7"),
                                  HasSubstr("line 99"), Not(HasSubstr("line 39\n"))));
}

TEST_F(StepBench, ReportsNothingWhenShardedTrainingIsAnother) {
  ::setenv("FAULT", "differs", 1);
  options_.json = folder_ / "all.json";
  const base::Error error = error_of([this] { run(); });
  EXPECT_EQ(error.code(), base::ErrorCode::kInternal);
  EXPECT_THAT(error.what(), HasSubstr("the loss in step 3 is 5.5 plain and 5.6 sharded"));
  EXPECT_THAT(report_.text(), IsEmpty());
  EXPECT_EQ(lines("order").size(), 2u) << "it went on after the first round";
  EXPECT_FALSE(std::filesystem::exists(options_.json));
}

TEST_F(StepBench, ARunThatDoesNotStopForItsMemoryIsAnError) {
  ::setenv("FAULT", "no gate", 1);
  options_.memory = true;
  EXPECT_THAT(error_of([this] { run(); }).what(),
              HasSubstr("'plain' has ended without stopping where its memory is read"));
}

TEST_F(StepBench, AStopIsAnExitCodeAndLeavesNoFile) {
  options_.measure = {"sh", "-c", "kill -TERM $PPID; exec sleep 1000", "sh"};
  options_.json = folder_ / "all.json";
  EXPECT_EQ(run(), 128 + SIGTERM);
  EXPECT_THAT(progress_.text(), HasSubstr("stopped by SIGTERM"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(StepBench, BadOptionsAreFoundBeforeAnythingRuns) {
  const auto error = [this](auto change) {
    StepBenchOptions kept = options_;
    change(options_);
    base::Error found = error_of([this] { run(); });
    options_ = std::move(kept);
    return found;
  };
  EXPECT_THAT(error([](auto& o) { o.pairs = 0; }).what(), HasSubstr("--pairs: found 0"));
  EXPECT_THAT(error([](auto& o) { o.spec.ranks = 0; }).what(), HasSubstr("--ranks"));
  EXPECT_THAT(error([](auto& o) { o.peer = "/dev/null"; }).what(), HasSubstr("--peer-python"));
  EXPECT_THAT(error([](auto& o) { o.peer = "/nowhere", o.peer_python = "python3"; }).what(),
              HasSubstr("'/nowhere'"));
  const base::Error unwritable = error([](auto& o) { o.json = "/nowhere/all.json"; });
  EXPECT_EQ(unwritable.code(), base::ErrorCode::kFile);
  EXPECT_THAT(unwritable.what(), HasSubstr("/nowhere/all.json"));
  EXPECT_THAT(lines("order"), IsEmpty());
}

}  // namespace
}  // namespace fullshard::bench
