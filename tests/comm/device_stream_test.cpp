// The order between callers' streams and a group's own, on a device that only writes down what it
// is told: PrivateUse1 of c10, which nothing else here uses.

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "comm/c10d/device_stream.h"

namespace fullshard::comm::testing {
namespace {

using c10d::DeviceStream;
using ::testing::ElementsAre;

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr c10::StreamId kPoolStream = 9;

// What was told, and how often events say that they are not done yet. Tests run one by one.
struct Told {
  std::vector<std::string> calls;
  int queries_until_done = 0;
};
Told told;  // NOLINT
thread_local c10::DeviceIndex device_now = 0;
thread_local c10::StreamId stream_now = 0;

class WritingGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    device_now = device.index();
    return before;
  }
  c10::Device getDevice() const override { return {kType, device_now}; }
  void setDevice(c10::Device device) const override { device_now = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    device_now = device.index();
  }
  c10::Stream getStream(c10::Device device) const override { return stream(device, stream_now); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return stream(device, kPoolStream);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const c10::Stream before = getStream(next.device());
    stream_now = next.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
  void record(void** event, const c10::Stream& on, c10::DeviceIndex,
              c10::EventFlag) const override {
    *event = this->event(on.id());
    told.calls.push_back(fmt::format("record on {}.{}", on.device_index(), on.id()));
  }
  void block(void* event, const c10::Stream& on) const override {
    told.calls.push_back(fmt::format("{}.{} waits for {}", on.device_index(), on.id(),
                                     reinterpret_cast<std::intptr_t>(event) - 1));
  }
  bool queryEvent(void*) const override { return told.queries_until_done-- <= 0; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}

 private:
  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }
  static void* event(c10::StreamId id) { return reinterpret_cast<void*>(id + 1); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, WritingGuard)

const c10::Device kSecond(kType, 1);

TEST(DeviceStream, TheGroupsStreamGoesOnAfterWhatTheCallerHadGiven) {
  told = {};
  const DeviceStream stream(kSecond);
  stream_now = 4;
  const DeviceStream::Mark mark = stream.mark();
  std::thread([&] {
    {
      const DeviceStream::Scope scope(stream, mark);
      EXPECT_EQ(device_now, 1);
      EXPECT_EQ(stream_now, kPoolStream);
    }
    EXPECT_EQ(device_now, 0);
    EXPECT_EQ(stream_now, 0);
  }).join();
  stream_now = 0;
  EXPECT_THAT(told.calls, ElementsAre("record on 1.4", "1.9 waits for 4"));
}

TEST(DeviceStream, FinishWaitsUntilTheGroupsStreamIsDone) {
  told = {};
  const DeviceStream stream(kSecond);
  told.queries_until_done = 5;
  EXPECT_TRUE(stream.finish(base::Deadline::after(std::chrono::minutes(1))));
  EXPECT_EQ(told.queries_until_done, -1);
  EXPECT_THAT(told.calls, ElementsAre("record on 1.9"));
}

TEST(DeviceStream, FinishGivesUpAtTheDeadline) {
  told = {};
  const DeviceStream stream(kSecond);
  told.queries_until_done = 1 << 30;
  EXPECT_FALSE(stream.finish(base::Deadline::after(std::chrono::milliseconds(1))));
}

TEST(DeviceStream, TheCpuHasNothingToOrder) {
  told = {};
  const DeviceStream stream{c10::Device(c10::kCPU)};
  EXPECT_EQ(stream.mark(), nullptr);
  { const DeviceStream::Scope scope(stream, stream.mark()); }
  EXPECT_TRUE(stream.finish(base::Deadline::after(std::chrono::milliseconds(0))));
  EXPECT_TRUE(told.calls.empty());
}

}  // namespace
}  // namespace fullshard::comm::testing
