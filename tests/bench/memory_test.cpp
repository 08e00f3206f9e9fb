#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <thread>
#include <vector>

#include "bench/error_of.h"
#include "bench/memory_peak.h"
#include "fullshard/base/machine.h"

namespace fullshard::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Comes to the gate with a second process; each takes 64 MiB once it is open, and both read one
/// mapping of another 64 MiB.
constexpr const char* kTwoProcesses = R"(
import mmap, os, sys, time
gate = sys.argv[1]
shared = mmap.mmap(-1, 64 << 20)
child = os.fork()
open(f"{gate}/{os.getpid()}.pid", "w").close()
while not os.path.exists(f"{gate}/go"): time.sleep(0.001)
own = b"x" * (64 << 20)
if child: shared.write(own)
time.sleep(1)
total = sum(shared[::4096])
time.sleep(1)
if child: os.waitpid(child, 0)
)";

TEST(MemoryPeak, IsTheSumOverProcessesWithSharedPagesOnce) {
  const HeldSignals signals;
  const MemoryGate gate;
  ChildProcess run({{"/usr/bin/python3", "-c", kTwoProcesses, gate.folder()}, {}, {}}, signals);
  const MemoryPeak peak = follow_memory(run, gate, 2);
  EXPECT_EQ(run.end().exit_code, 0);
  EXPECT_GT(peak.samples, 0);
  EXPECT_GT(peak.base_bytes, 1 << 20);
  EXPECT_GT(peak.above_base(), std::int64_t{3 * 64 - 2} << 20);
  EXPECT_LT(peak.above_base(), std::int64_t{3 * 64 + 32} << 20);
}

TEST(MemoryPeak, OfARunThatEndsBeforeTheGateHasNoSamples) {
  const HeldSignals signals;
  const MemoryGate gate;
  ChildProcess run({{"sh", "-c", "exit 4"}, {}, {}}, signals);
  EXPECT_EQ(follow_memory(run, gate, 1).samples, 0);
  EXPECT_EQ(run.end().exit_code, 4);
}

TEST(MemoryPeak, OfARunWithTooFewProcessesIsAnError) {
  const HeldSignals signals;
  const MemoryGate gate;
  ChildProcess run({{"sleep", "1000"}, {}, {}}, signals);
  const base::Error error =
      error_of([&] { follow_memory(run, gate, 2, std::chrono::milliseconds(1)); });
  EXPECT_EQ(error.code(), base::ErrorCode::kTimeout);
  EXPECT_THAT(error.what(), HasSubstr("of 2 processes whose memory is to be read only 0"));
}

TEST(ProportionalBytes, GrowByWhatAProcessTouches) {
  constexpr std::int64_t kBytes = 8 << 20;
  const std::int64_t before = base::proportional_bytes(::getpid()).value();
  const std::vector<char> touched(kBytes, 'x');
  asm volatile("" : : "r"(touched.data()) : "memory");  // or the compiler leaves the memory out
  EXPECT_GE(base::proportional_bytes(::getpid()).value(), before + kBytes / 2);
  EXPECT_EQ(touched.back(), 'x');
}

TEST(ProportionalBytes, OfAProcessThatIsGoneAreNone) {
  EXPECT_EQ(base::proportional_bytes(1 << 30), std::nullopt);
}

TEST(MemoryGate, HoldsAProcessUntilItIsOpened) {
  std::string folder;
  {
    const MemoryGate gate;
    folder = gate.folder();
    EXPECT_THAT(gate.arrived(), IsEmpty());
    bool through = false;
    std::thread process([&] {
      stop_at_memory_gate(gate.folder(), std::chrono::minutes(2));
      through = true;
    });
    while (gate.arrived().empty()) std::this_thread::yield();
    EXPECT_THAT(gate.arrived(), ElementsAre(::getpid()));
    gate.open();
    process.join();
    EXPECT_TRUE(through);
    EXPECT_THAT(gate.arrived(), ElementsAre(::getpid()));
  }
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(MemoryGate, ThatNobodyOpensIsAnError) {
  const MemoryGate gate;
  const base::Error late =
      error_of([&] { stop_at_memory_gate(gate.folder(), std::chrono::milliseconds(1)); });
  EXPECT_EQ(late.code(), base::ErrorCode::kTimeout);
  const base::Error missing =
      error_of([] { stop_at_memory_gate("/nowhere", std::chrono::milliseconds(1)); });
  EXPECT_EQ(missing.code(), base::ErrorCode::kFile);
  EXPECT_THAT(missing.what(), HasSubstr("/nowhere"));
}

}  // namespace
}  // namespace fullshard::bench
