// Backends of devices that do not return: connecting, aborting, leaving. Nobody waits for them
// longer than the deadline, or than a few seconds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <stdexcept>
#include <thread>

#include "comm/device/errand.h"
#include "comm/device_ranks.h"
#include "comm/errors.h"
#include "comm/values.h"

namespace fullshard::comm::testing {
namespace {

using base::DType;
using base::Error;
using base::ErrorCode;
using c10d::ConnectDevices;
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

std::shared_ptr<Group> make_group(World& world, const ConnectDevices& connect) {
  return make_device_group(world, rendezvous::Store::in_memory(), connect);
}

ConnectDevices connect_never(const Gate& gate) {
  return [opened = gate.opened()](const auto&, int, int, c10::Device, base::Duration) {
    opened.wait();
    return Connection();
  };
}

TEST(DevicePatience, DevicesThatDoNotConnectEndInATimeout) {
  const Gate gate;
  const auto body = [&](World& world) {
    const Error error =
        expect_error(ErrorCode::kTimeout, [&] { make_group(world, connect_never(gate)); });
    EXPECT_THAT(error.what(), HasSubstr("connecting the devices of 2 ranks timed out after 1 s: "
                                        "all ranks arrived"));
  };
  run_as_threads(2, body, {.timeout = seconds(1)});
}

TEST(DevicePatience, ARankThatCannotConnectEndsTheWaitOfTheOthers) {
  const Gate gate;
  const auto body = [&](World& world) {
    const ConnectDevices fails = [](const auto&, int, int, c10::Device,
                                    base::Duration) -> Connection {
      throw Error(ErrorCode::kSystem, "no device memory");
    };
    const Error error = expect_error(ErrorCode::kSystem, [&] {
      make_group(world, world.rank() == 2 ? fails : connect_never(gate));
    });
    EXPECT_THAT(error.what(), HasSubstr("rank 2: no device memory"));
    EXPECT_EQ(error.rank(), 2);
  };
  run_as_threads(3, body, {.timeout = kLong});
}

TEST(DevicePatience, ARankThatGivesUpWhileDevicesConnectIsNamed) {
  const Gate gate;
  const auto body = [&](World& world) {
    const auto connects = std::make_shared<std::promise<void>>();  // with what is left behind
    const ConnectDevices connect = [connects, never = connect_never(gate)](auto&&... arguments) {
      connects->set_value();
      return never(arguments...);
    };
    std::jthread quitter([&] {
      connects->get_future().wait();
      if (world.rank() == 1) world.group().abort("bad sample 17");
    });
    const Error error = expect_error(ErrorCode::kPeerLost, [&] { make_group(world, connect); });
    EXPECT_EQ(error.rank(), 1);
    EXPECT_THAT(error.what(), HasSubstr("bad sample 17"));
  };
  run_as_threads(2, body, {.timeout = kLong});
}

// The end of a group that has not failed, and the abort of one that has.
TEST(DevicePatience, ABackendThatDoesNotEndIsLeftBehind) {
  const Gate gate;
  const auto hub = std::make_shared<Hub>();
  const ConnectDevices connect = [&](const auto&, int rank, int size, c10::Device,
                                     base::Duration) -> Connection {
    return c10::make_intrusive<StuckBackend>(hub, rank, size, gate.opened());
  };
  const auto body = [&](World& world) {
    make_group(world, connect);  // and leave it
    auto group = make_group(world, connect);
    hub->stall();
    if (world.rank() == 1) group->abort("bad sample 17");
    Values values = make_input(DType::kFloat32, world.rank(), 100);
    expect_error(ErrorCode::kPeerLost, [&] {
      group->all_reduce(on_device(values), ReduceOp::kSum, {"blocks.3", 7}).wait();
    });
  };
  const auto begin = base::Clock::now();
  run_as_threads(2, body, {.timeout = kLong});
  EXPECT_LT(base::Clock::now() - begin, kLong / 2);
}

// Nothing tells a rank that computes that another one has gone, so that its farewell finds it.
TEST(DevicePatience, AFarewellToRanksThatHaveFailedIsAnAbort) {
  StandIns stand_ins;
  const auto body = [&](World& world) {
    auto group = stand_ins.make_group(world);
    group->barrier({});
    if (world.rank() == 1) return group->abort("bad sample 17");
    while (true) {
      try {
        world.group().barrier({});
      } catch (const Error&) {
        break;
      }
    }
    group.reset();
    EXPECT_TRUE(stand_ins.hub(0).aborted(0));
  };
  run_as_threads(2, body, {.timeout = kLong});
}

TEST(Errand, ItsEndAndItsErrorAreToldAndWhatItKeptIsFreed) {
  const auto await = [](const device::Errand& errand) {
    while (!errand.ended_within(milliseconds(1))) {
    }
  };
  const auto kept = std::make_shared<int>(0);
  const device::Errand well([kept] { ++*kept; });
  await(well);
  EXPECT_EQ(*kept, 1);
  const device::Errand badly([kept] { throw std::runtime_error("no"); });
  EXPECT_THROW(await(badly), std::runtime_error);
  EXPECT_EQ(kept.use_count(), 1);
}

TEST(Errand, OneThatDoesNotEndIsLeftBehind) {
  const Gate gate;
  const auto kept = std::make_shared<int>(0);
  {
    const device::Errand errand([kept, opened = gate.opened()] { opened.wait(); });
    EXPECT_FALSE(errand.ended_within(milliseconds(1)));
  }
  EXPECT_EQ(kept.use_count(), 2);
}

}  // namespace
}  // namespace fullshard::comm::testing
