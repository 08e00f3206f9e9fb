// What a group of devices does besides moving data: watching, telling why, refusing. Its devices
// are the CPU, and its backend one whose faults tests can ask for.

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "comm/c10d/join_gpus.h"
#include "comm/device_ranks.h"
#include "comm/errors.h"
#include "comm/values.h"
#include "fullshard/comm/reduce.h"

namespace fullshard::comm::testing {
namespace {

using base::DType;
using base::ErrorCode;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kShort = std::chrono::seconds(1);
constexpr auto kLong = std::chrono::seconds(60);

void run(int size, StandIns& stand_ins, base::Duration timeout,
         const std::function<void(World&, Group&)>& body) {
  CommOptions options;
  options.timeout = timeout;
  run_as_threads(
      size,
      [&](World& world) {
        const auto group = stand_ins.make_group(world);
        body(world, *group);
      },
      options);
}

base::Error reduce_fails(ErrorCode code, Group& group, const OpTag& tag = {"blocks.3", 7}) {
  Values values = make_input(DType::kFloat32, group.rank(), 100);
  return expect_error(code,
                      [&] { group.all_reduce(on_device(values), ReduceOp::kSum, tag).wait(); });
}

TEST(DeviceGroup, HostMemoryIsRefused) {
  StandIns stand_ins;
  run(1, stand_ins, kLong, [](World&, Group& group) {
    Values values(DType::kInt8, 4);
    const auto error =
        expect_error(ErrorCode::kInvalidArgument, [&] { group.broadcast(values.buffer(), 0, {}); });
    EXPECT_THAT(error.what(), HasSubstr("broadcast: a buffer on the host was passed, and this "
                                        "group moves memory of device 0"));
    expect_error(ErrorCode::kMisuse, [&] { group.allocate_shared(64, "weights"); });
    expect_error(ErrorCode::kMisuse, [&] { group.allocate_signals(1, "gate"); });
  });
}

TEST(DeviceGroup, DifferentCallsAreFoundBeforeDataMoves) {
  StandIns stand_ins;
  run(2, stand_ins, kLong, [&](World& world, Group& group) {
    Values values = make_input(DType::kFloat32, world.rank(), world.rank() == 0 ? 100 : 101);
    const auto error = expect_error(ErrorCode::kMismatch, [&] {
      group.all_reduce(on_device(values), ReduceOp::kSum, {"blocks.3", 7}).wait();
    });
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("all_reduce (sum of 100 float32) on devices of unit 'blocks.3' in "
                                "step 7"),
                      HasSubstr("all_reduce (sum of 101 float32) on devices")));
    EXPECT_EQ(values.get(1), input_value(DType::kFloat32, world.rank(), 1));
    reduce_fails(ErrorCode::kMismatch, group);  // and it stays failed
    EXPECT_TRUE(stand_ins.hub(0).aborted(world.rank()));
  });
}

TEST(DeviceGroup, CountsOfAnAllToAllMustFit) {
  StandIns stand_ins;
  run(2, stand_ins, kLong, [](World& world, Group& group) {
    Values send = make_input(DType::kInt32, world.rank(), 4);
    Values recv(DType::kInt32, 5);
    const std::vector<std::int64_t> out = {2, 2};
    const std::vector<std::int64_t> in = {2, 3};
    const auto error = expect_error(ErrorCode::kMismatch, [&] {
      group.all_to_all(on_device(send), out, on_device(recv), in, {}).wait();
    });
    EXPECT_THAT(error.what(), HasSubstr("sends 2 elements to rank 0, which expects 3"));
  });
}

TEST(DeviceGroup, ARankThatDoesNotComeIsNamed) {
  StandIns stand_ins;
  run(3, stand_ins, kShort, [](World& world, Group& group) {
    if (world.rank() == 2) {
      std::this_thread::sleep_for(2 * kShort);
      return;
    }
    const auto error = reduce_fails(ErrorCode::kTimeout, group);
    EXPECT_EQ(error.rank(), 2);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("on devices of unit 'blocks.3' in step 7"),
                                    HasSubstr("timed out"), HasSubstr("rank 2 is missing")));
  });
}

TEST(DeviceGroup, ADeviceThatHangsEndsInATimeoutOfTheOperation) {
  StandIns stand_ins;
  run(2, stand_ins, kShort, [&](World&, Group& group) {
    group.barrier({});
    stand_ins.hub(0).stall();
    try {
      Values values = make_input(DType::kFloat32, group.rank(), 100);
      group.all_reduce(on_device(values), ReduceOp::kSum, {"blocks.3", 7}).wait();
      ADD_FAILURE() << "it did not fail";
    } catch (const base::Error& error) {
      // The first to see it says so; the other one may hear of it before its own deadline.
      EXPECT_TRUE(error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kPeerLost);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("all_reduce (sum of 100 float32) on devices of "
                                                "unit 'blocks.3' in step 7 timed out after 1 s"),
                                      HasSubstr("the devices did not finish it")));
    }
  });
}

TEST(DeviceGroup, ARankThatGivesUpInTheMiddleFreesTheOthers) {
  StandIns stand_ins;
  run(2, stand_ins, kLong, [&](World& world, Group& group) {
    group.barrier({});
    stand_ins.hub(0).stall();
    Values values = make_input(DType::kFloat32, group.rank(), 100);
    Work work = group.all_reduce(on_device(values), ReduceOp::kSum, {"blocks.3", 7});
    if (world.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      group.abort("it ran out of memory");
    }
    const auto error = expect_error(ErrorCode::kPeerLost, [&] { work.wait(); });
    EXPECT_EQ(error.rank(), 1);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 gave up: it ran out of memory"));
    expect_error(ErrorCode::kPeerLost, [&] { work.wait(); });
    EXPECT_FALSE(work.done());
  });
}

TEST(DeviceGroup, WhatTheBackendSaysIsPassedOnWithTheOperation) {
  StandIns stand_ins;
  run(2, stand_ins, kLong, [&](World& world, Group& group) {
    group.barrier({});
    if (world.rank() == 0) stand_ins.hub(0).break_down();
    try {
      for (int step = 0; step < 1000; ++step) {
        Values values = make_input(DType::kFloat32, group.rank(), 100);
        group.all_reduce(on_device(values), ReduceOp::kSum, {"blocks.3", step}).wait();
      }
      ADD_FAILURE() << "it did not fail";
    } catch (const base::Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::kSystem || error.code() == ErrorCode::kPeerLost);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("of unit 'blocks.3' in step"),
                                      HasSubstr("failed on cpu: unhandled system error")));
      EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("long explanation")));
    }
  });
}

TEST(DeviceGroup, LeavingByAnExceptionTellsTheOthers) {
  StandIns stand_ins;
  EXPECT_THROW(run(2, stand_ins, kLong,
                   [](World& world, Group& group) {
                     if (world.rank() == 1) throw std::runtime_error("no more");
                     EXPECT_EQ(reduce_fails(ErrorCode::kPeerLost, group).rank(), 1);
                   }),
               std::runtime_error);
}

TEST(DeviceGroup, AGroupOfOneNeedsNoBackend) {
  StandIns stand_ins;
  run(2, stand_ins, kLong, [](World& world, Group& group) {
    const std::vector<int> one = {world.rank()};
    for (int rank = 0; rank < 2; ++rank) {
      const std::vector<int> other = {rank};
      const auto alone = group.subgroup(rank == world.rank() ? one : other);
      ASSERT_EQ(alone == nullptr, rank != world.rank());
      if (alone == nullptr) continue;
      Values values = make_input(DType::kBFloat16, 3, 9);
      Values copy(DType::kBFloat16, 9);
      alone->reduce_scatter(on_device(values), on_device(copy), ReduceOp::kMean, {}, {}).wait();
      EXPECT_EQ(copy.bytes(), values.bytes());
    }
  });
}

// The sums of devices are made by other code than those of hosts, to the same bits.
TEST(Combine, HasTheBitsOfReduceParts) {
  for (const DType dtype : all_dtypes()) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax}) {
      if (!can_reduce(dtype, op)) continue;
      for (const int ranks : {1, 2, 3, 4, 7}) {
        const std::int64_t count = 203;
        std::vector<Values> parts;
        std::vector<const void*> pointers;
        std::vector<at::Tensor> tensors;
        for (int rank = 0; rank < ranks; ++rank) {
          Values& part = parts.emplace_back(dtype, count);
          for (std::int64_t i = 0; i < count; ++i) {
            const double value = 90 * std::sin(static_cast<double>(i * 13 + rank * 7919));
            part.set(i, dtype == DType::kBool ? value > 0 : std::abs(value));
          }
        }
        for (Values& part : parts) {
          pointers.push_back(part.data());
          tensors.push_back(at::from_blob(part.data(), {count}, c10d::scalar_type(dtype)));
        }
        Values expected(dtype, count);
        Values actual(dtype, count);
        reduce_parts(pointers, expected.data(), count, dtype, op);
        c10d::combine(tensors, at::from_blob(actual.data(), {count}, c10d::scalar_type(dtype)), op,
                      ranks);
        EXPECT_EQ(actual.bytes(), expected.bytes())
            << base::to_string(dtype) << " op " << static_cast<int>(op) << " of " << ranks;
      }
    }
  }
}

// A plugin that finds so many GPUs.
template <int gpus>
device::Plugin plugin_with() {
  return {"", "", [](std::string&) { return gpus; }, nullptr};
}

TEST(Gpus, M11_EachRankTakesTheOneOfItsNumberOnTheHost) {
  run_as_threads(3, [](World& world) {
    EXPECT_EQ(c10d::choose_gpu(plugin_with<3>(), world, std::nullopt), world.local_rank());
    EXPECT_EQ(c10d::choose_gpu(plugin_with<3>(), world, 1), 1);
  });
  ::setenv("CUDA_VISIBLE_DEVICES", "2", 1);  // as a launcher gives each its own
  run_as_threads(3, [](World& world) {
    EXPECT_EQ(c10d::choose_gpu(plugin_with<1>(), world, std::nullopt), 0);
  });
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(Gpus, M11_FewerThanRanksIsAnErrorOnAllOfThemAtTheStart) {
  const auto store = rendezvous::Store::in_memory();
  run_as_threads(3, [&](World& world) {
    const auto error = expect_error(ErrorCode::kConfiguration, [&] {
      c10d::join_gpus(plugin_with<2>(), world, store, std::nullopt);
    });
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("of 3 on its host"), HasSubstr("2 GPUs are visible")));
  });
}

TEST(Gpus, AreUsedWhereAllRanksSeeThem) {
  run_as_threads(3, [&](World& world) {
    EXPECT_TRUE(c10d::all_see_gpus(world, 1 + world.rank()));
    EXPECT_FALSE(c10d::all_see_gpus(world, 0));
    const auto error = expect_error(ErrorCode::kConfiguration,
                                    [&] { c10d::all_see_gpus(world, world.rank() == 1 ? 0 : 2); });
    EXPECT_EQ(error.rank(), 1);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("1 of 3 ranks see no GPU"), HasSubstr("rank 1")));
  });
}

TEST(Gpus, ARankThatCannotJoinTellsTheOthers) {
  const auto store = rendezvous::Store::in_memory();
  run_as_threads(2, [&](World& world) {
    if (world.rank() == 1) {
      expect_error(ErrorCode::kConfiguration,
                   [&] { c10d::join_gpus(plugin_with<2>(), world, store, 2); });
      return;
    }
    const auto error = expect_error(ErrorCode::kPeerLost, [&] { world.group().barrier({}); });
    EXPECT_EQ(error.rank(), 1);
    EXPECT_THAT(error.what(), HasSubstr("GPU 2 was asked for"));
  });
}

}  // namespace
}  // namespace fullshard::comm::testing
