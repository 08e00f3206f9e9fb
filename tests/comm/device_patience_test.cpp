// Backends of devices that do not return: connecting, aborting, leaving. Nobody waits for them
// longer than the deadline, or than a few seconds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <numeric>

#include "comm/device_ranks.h"
#include "comm/errors.h"
#include "comm/values.h"

namespace fullshard::comm::testing {
namespace {

using base::DType;
using base::Error;
using base::ErrorCode;
using c10d::ConnectDevices;
using c10d::DeviceGroup;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// Long against anything that a test waits for: whoever runs into it has not noticed what it should.
constexpr auto kLong = seconds(120);

using Connection = c10::intrusive_ptr<::c10d::Backend>;

/// What calls of a backend wait for. It opens when the test ends, so that they can end as well.
class Gate {
 public:
  Gate() : opened_(open_.get_future().share()) {}
  ~Gate() { open_.set_value(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  std::shared_future<void> opened() const { return opened_; }

 private:
  std::promise<void> open_;
  std::shared_future<void> opened_;
};

class StuckBackend final : public ThreadsBackend {
 public:
  StuckBackend(std::shared_ptr<Hub> hub, int rank, int size, std::shared_future<void> until)
      : ThreadsBackend(std::move(hub), rank, size), until_(std::move(until)) {}

  void abort() override {
    ThreadsBackend::abort();
    until_.wait();
  }
  void shutdown() override { until_.wait(); }

 private:
  std::shared_future<void> until_;
};

std::shared_ptr<DeviceGroup> make_group(World& world, const ConnectDevices& connect) {
  std::vector<int> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  return std::make_shared<DeviceGroup>(world.group().subgroup(all), rendezvous::Store::in_memory(),
                                       connect, c10::Device(c10::kCPU));
}

ConnectDevices connect_never(const Gate& gate) {
  return [opened = gate.opened()](const auto&, int, int, c10::Device, base::Duration) {
    opened.wait();
    return Connection();
  };
}

TEST(DevicePatience, DevicesThatDoNotConnectEndInATimeout) {
  const Gate gate;
  run_as_threads(2,
                 [&](World& world) {
                   try {
                     make_group(world, connect_never(gate));
                     ADD_FAILURE() << "it connected";
                   } catch (const Error& error) {
                     EXPECT_EQ(error.code(), ErrorCode::kTimeout);
                     EXPECT_THAT(error.what(),
                                 HasSubstr("connecting the devices of 2 ranks timed out after "
                                           "0.3 s: all ranks arrived"));
                   }
                 },
                 {.timeout = milliseconds(300)});
}

TEST(DevicePatience, ARankThatCannotConnectEndsTheWaitOfTheOthers) {
  const Gate gate;
  run_as_threads(3,
                 [&](World& world) {
                   const ConnectDevices fails = [](const auto&, int, int, c10::Device,
                                                   base::Duration) -> Connection {
                     throw Error(ErrorCode::kSystem, "no device memory");
                   };
                   const Error error = expect_error(ErrorCode::kSystem, [&] {
                     make_group(world, world.rank() == 2 ? fails : connect_never(gate));
                   });
                   EXPECT_THAT(error.what(), HasSubstr("no device memory"));
                   if (world.rank() != 2) EXPECT_EQ(error.rank(), 2);
                 },
                 {.timeout = kLong});
}

TEST(DevicePatience, ARankThatGivesUpWhileDevicesConnectIsNamed) {
  const Gate gate;
  run_as_threads(
      2,
      [&](World& world) {
        const ConnectDevices gives_up = [&, connect = connect_never(gate)](auto&&... arguments) {
          if (world.rank() == 1) world.group().abort("bad sample 17");
          return connect(arguments...);
        };
        const Error error =
            expect_error(ErrorCode::kPeerLost, [&] { make_group(world, gives_up); });
        EXPECT_EQ(error.rank(), 1);
        EXPECT_THAT(error.what(), HasSubstr("bad sample 17"));
      },
      {.timeout = kLong});
}

// The abort of a failed group, and the end of one that has not failed.
TEST(DevicePatience, ABackendThatDoesNotEndIsLeftBehind) {
  const Gate gate;
  const auto hub = std::make_shared<Hub>();
  const ConnectDevices connect = [&](const auto&, int rank, int size, c10::Device,
                                     base::Duration) -> Connection {
    return c10::make_intrusive<StuckBackend>(hub, rank, size, gate.opened());
  };
  const auto begin = base::Clock::now();
  run_as_threads(2,
                 [&](World& world) {
                   make_group(world, connect);  // and leave it
                   auto group = make_group(world, connect);
                   hub->stall();
                   if (world.rank() == 1) group->abort("bad sample 17");
                   Values values = make_input(DType::kFloat32, world.rank(), 100);
                   expect_error(ErrorCode::kPeerLost, [&] {
                     group->all_reduce(on_device(values), ReduceOp::kSum, {"blocks.3", 7}).wait();
                   });
                   group.reset();
                 },
                 {.timeout = kLong});
  EXPECT_LT(base::Clock::now() - begin, kLong);
}

}  // namespace
}  // namespace fullshard::comm::testing
