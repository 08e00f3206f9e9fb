// Groups that take host memory only, and the one that sends each buffer to its side. Two groups of
// threads stand for the two sides; the one for devices strips the device from its buffers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "comm/errors.h"
#include "comm/ranks.h"
#include "comm/values.h"
#include "fullshard/comm/mixed.h"
#include "support/forwarding_group.h"

namespace fullshard::comm::testing {
namespace {

using base::DType;
using base::ErrorCode;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kDevice = 2;

template <typename AnyBuffer>
AnyBuffer at(AnyBuffer buffer, int device) {
  buffer.device = device;
  return buffer;
}

// Stands for a group of devices: refuses host memory, and has its work done by a group of threads.
class DeviceStandIn final : public fullshard::testing::ForwardingGroup {
 public:
  explicit DeviceStandIn(std::shared_ptr<Group> inner) : ForwardingGroup(std::move(inner)) {}

  Work all_gather(ConstBuffer mine, Buffer all, std::span<const std::int64_t> counts,
                  const OpTag& tag) override {
    return group().all_gather(strip(mine), strip(all), counts, tag);
  }
  Work reduce_scatter(ConstBuffer all, Buffer mine, ReduceOp op,
                      std::span<const std::int64_t> counts, const OpTag& tag) override {
    return group().reduce_scatter(strip(all), strip(mine), op, counts, tag);
  }
  Work all_reduce(Buffer inout, ReduceOp op, const OpTag& tag) override {
    return group().all_reduce(strip(inout), op, tag);
  }
  Work broadcast(Buffer inout, int root, const OpTag& tag) override {
    return group().broadcast(strip(inout), root, tag);
  }
  Work all_to_all(ConstBuffer send, std::span<const std::int64_t> send_counts, Buffer recv,
                  std::span<const std::int64_t> recv_counts, const OpTag& tag) override {
    return group().all_to_all(strip(send), send_counts, strip(recv), recv_counts, tag);
  }
  std::shared_ptr<Group> subgroup(std::span<const int> ranks) override {
    auto some = group().subgroup(ranks);
    return some == nullptr ? nullptr : std::make_shared<DeviceStandIn>(std::move(some));
  }

  int calls() const { return calls_; }

 private:
  template <typename AnyBuffer>
  AnyBuffer strip(AnyBuffer buffer) {
    EXPECT_EQ(buffer.device, kDevice);
    ++calls_;
    return at(buffer, kHostMemory);
  }

  int calls_ = 0;
};

std::vector<int> everyone(const World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

struct Sides {
  explicit Sides(World& world)
      : devices(std::make_shared<DeviceStandIn>(world.group().subgroup(everyone(world)))),
        mixed(make_mixed_group(world.mesh().all, devices)) {}

  std::shared_ptr<DeviceStandIn> devices;
  std::shared_ptr<Group> mixed;
};

// Every collective once, with all buffers on `device`.
void use_all(Group& group, int device) {
  Values mine = make_input(DType::kInt32, group.rank(), 5);
  Values all(DType::kInt32, 5 * group.size());
  group.all_gather(at(mine.input(), device), at(all.buffer(), device), {}, {}).wait();
  for (int r = 0; r < group.size(); ++r) {
    EXPECT_EQ(all.get(r * 5 + 1), input_value(DType::kInt32, r, 1));
  }
  group.reduce_scatter(at(all.input(), device), at(mine.buffer(), device), ReduceOp::kSum, {}, {})
      .wait();
  EXPECT_EQ(mine.get(1), group.size() * input_value(DType::kInt32, group.rank(), 1));
  group.broadcast(at(mine.buffer(), device), 0, {}).wait();
  EXPECT_EQ(mine.get(1), group.size() * input_value(DType::kInt32, 0, 1));
  group.all_reduce(at(mine.buffer(), device), ReduceOp::kMax, {}).wait();
  EXPECT_EQ(mine.get(1), group.size() * input_value(DType::kInt32, 0, 1));
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), 5);
  Values swapped(DType::kInt32, 5 * group.size());
  group.all_to_all(at(all.input(), device), counts, at(swapped.buffer(), device), counts, {})
      .wait();
  EXPECT_EQ(swapped.get(1), input_value(DType::kInt32, group.rank(), 1));
}

TEST(Mixed, EachBufferGoesToItsSide) {
  run_ranks(Backend::kLocal, 3, [](World& world) {
    Sides sides(world);
    use_all(*sides.mixed, kHostMemory);
    EXPECT_EQ(sides.devices->calls(), 0);
    use_all(*sides.mixed, kDevice);
    EXPECT_EQ(sides.devices->calls(), 8);  // two buffers in three of the five
    sides.mixed->barrier({});
    EXPECT_TRUE(sides.mixed->shares_memory());
    EXPECT_EQ(sides.mixed->allocate_shared(64, "both sides")->size(), 64U);
    EXPECT_FALSE(sides.mixed->allocate_signals(1, "both sides")->reached(0, 1));
  });
}

TEST(Mixed, SubgroupsAreMixedToo) {
  run_ranks(Backend::kLocal, 3, [](World& world) {
    Sides sides(world);
    const std::vector<int> some = {2, 0};
    const auto group = sides.mixed->subgroup(some);
    ASSERT_EQ(group == nullptr, world.rank() == 1);
    if (group == nullptr) return;
    EXPECT_EQ(group->rank(), world.rank() == 2 ? 0 : 1);
    use_all(*group, kHostMemory);
    use_all(*group, kDevice);
  });
}

TEST(Mixed, AbortEndsWaitsOnBothSides) {
  run_ranks(Backend::kLocal, 2, [](World& world) {
    Sides sides(world);
    if (world.rank() == 1) return sides.mixed->abort("enough");
    for (const int device : {kHostMemory, kDevice}) {
      const auto error = expect_error(ErrorCode::kPeerLost, [&] { use_all(*sides.mixed, device); });
      EXPECT_THAT(error.what(), HasSubstr("rank 1 gave up: enough"));
    }
  });
}

TEST(Mixed, BuffersOfOneCallLieOnOneSide) {
  run_ranks(Backend::kLocal, 1, [](World& world) {
    Sides sides(world);
    Values values(DType::kInt8, 4);
    const auto refuse = [&](const char* name, const std::function<void()>& call) {
      const auto error = expect_error(ErrorCode::kInvalidArgument, call);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(std::string(name) + ": one buffer is in host memory"),
                        HasSubstr("the other on device 2")));
    };
    const Buffer here = values.buffer();
    const Buffer there = at(here, kDevice);
    const std::vector<std::int64_t> counts = {4};
    refuse("all_gather", [&] { sides.mixed->all_gather(here, there, {}, {}); });
    refuse("reduce_scatter",
           [&] { sides.mixed->reduce_scatter(there, here, ReduceOp::kSum, {}, {}); });
    refuse("all_to_all", [&] { sides.mixed->all_to_all(here, counts, there, counts, {}); });
  });
}

TEST(Mixed, TheGroupsMustBeOfTheSameRanks) {
  run_ranks(Backend::kLocal, 2, [](World& world) {
    const std::vector<int> turned = {1, 0};
    const auto other = world.group().subgroup(turned);
    const auto error = expect_error(ErrorCode::kInvalidArgument,
                                    [&] { make_mixed_group(world.mesh().all, other); });
    EXPECT_THAT(error.what(), HasSubstr("rank 0 of 2"));
  });
}

TEST(Mixed, GroupsOfHostMemoryRefuseDevices) {
  for (const Backend backend : backends()) {
    run_ranks(backend, 1, [](World& world) {
      Values values(DType::kInt8, 4);
      const Buffer there = at(values.buffer(), kDevice);
      const std::vector<std::int64_t> counts = {4};
      Group& group = world.group();
      const auto refuse = [](const char* name, const std::function<void()>& call) {
        EXPECT_THAT(expect_error(ErrorCode::kInvalidArgument, call).what(),
                    HasSubstr(std::string(name) + ": a buffer on device 2 was passed, and this "
                                                  "group moves memory of the host"));
      };
      refuse("all_gather", [&] { group.all_gather(there, there, {}, {}); });
      refuse("reduce_scatter", [&] { group.reduce_scatter(there, there, ReduceOp::kSum, {}, {}); });
      refuse("all_reduce", [&] { group.all_reduce(there, ReduceOp::kSum, {}); });
      refuse("broadcast", [&] { group.broadcast(there, 0, {}); });
      refuse("all_to_all", [&] { group.all_to_all(there, counts, there, counts, {}); });
    });
  }
}

}  // namespace
}  // namespace fullshard::comm::testing
