#include "shard/step_memory.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "fullshard/comm/world.h"
#include "support/training.h"

namespace fullshard::shard {
namespace {

// Bytes copied in each of some steps.
std::vector<std::int64_t> copied(const testing::Problem& task, comm::World& world, int steps,
                                 const FullyShardOptions& options = {}) {
  const auto model = task.build();
  const auto sharded = fully_shard(model, world.mesh(), options);
  std::vector<std::int64_t> out;
  std::int64_t before = 0;
  for (int step = 0; step < steps; ++step) {
    const auto batch = testing::rows_of_rank(task.batch(step), world.rank(), world.size());
    model->loss(batch.x, batch.y).backward();
    sharded.zero_grad();
    const std::int64_t now = sharded.counters().copied_gradient_bytes;
    out.push_back(now - before);
    before = now;
  }
  return out;
}

TEST(StepMemory, GradientsAreMadeWhereOthersReadThem) {
  for (const int ranks : {1, 2, 3}) {
    comm::run_as_threads(ranks, [&](comm::World& world) {
      for (const bool tied : {false, true}) {
        const auto bytes = copied(testing::gpt_problem(96, 48, 2, tied), world, 4);
        EXPECT_EQ(bytes, std::vector<std::int64_t>(bytes.size(), 0)) << ranks << " ranks";
      }
    });
  }
}

// As oneDNN takes memory for its scratch.
TEST(StepMemory, IsTakenAndReturnedRaw) {
  comm::run_as_threads(2, [](comm::World& world) {
    const auto task = testing::gpt_problem(96, 48, 1);
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    const auto batch = testing::rows_of_rank(task.batch(0), world.rank(), world.size());
    const at::Tensor loss = model->loss(batch.x, batch.y);  // of a step that goes on
    auto& allocator = *c10::GetCPUAllocator();
    std::vector<void*> taken;
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{1} << 20, std::size_t{3} << 20}) {
      taken.push_back(allocator.raw_allocate(bytes));
      std::memset(taken.back(), 1, bytes);
    }
    for (void* data : taken) allocator.raw_deallocate(data);
    EXPECT_EQ(allocator.raw_allocate(1 << 20), taken[1]) << "its memory was not returned";
    allocator.raw_deallocate(taken[1]);
  });
}

struct OneLayer : testing::Model {
  OneLayer() {
    weight = register_parameter("weight", at::arange(64, at::kDouble).view({8, 8}));
    twin = register_parameter("twin", at::ones({8, 8}, at::kDouble));
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    return ((weight + twin) * x * y).sum();
  }
  at::Tensor weight, twin;
};

struct OneLayerTask {
  std::shared_ptr<OneLayer> model = std::make_shared<OneLayer>();
  at::Tensor x = at::rand({8, 8}, at::kDouble);
  at::Tensor y = at::rand({8, 8}, at::kDouble);
};

void expect_whole(const ShardedModule& sharded, const at::Tensor& expected) {
  for (const auto& shard : sharded.named_parameters()) {
    const at::Tensor part = expected.flatten().narrow(0, shard.begin, shard.end - shard.begin);
    EXPECT_TRUE(at::allclose(shard.tensor.grad(), part)) << shard.name;
  }
}

// Autograd gives both parameters the same tensor.
TEST(StepMemory, AGradientOfTwoParametersIsNotTakenFromEither) {
  for (const int ranks : {1, 2}) {
    comm::run_as_threads(ranks, [](comm::World& world) {
      OneLayerTask task;
      const auto sharded = fully_shard(task.model, world.mesh(), {.gradient_divide_factor = 1});
      at::Tensor sum = at::zeros({8, 8}, at::kDouble);
      for (int pass = 0; pass < 2; ++pass) {
        task.model->loss(task.x, task.y).backward();
        at::Tensor mine = task.x * task.y;
        world.group()
            .all_reduce({mine.data_ptr(), 64, base::DType::kFloat64}, comm::ReduceOp::kSum, {})
            .wait();
        sum += mine;
        expect_whole(sharded, sum);
      }
    });
  }
}

TEST(StepMemory, WhatAHookHasKeptIsTheUsersOwn) {
  for (const int ranks : {1, 2}) {
    comm::run_as_threads(ranks, [](comm::World& world) {
      OneLayerTask task;
      at::Tensor kept;
      task.model->weight.register_hook([&](const at::Tensor& gradient) { kept = gradient; });
      std::optional<ShardedModule> sharded =
          fully_shard(task.model, world.mesh(), {.gradient_divide_factor = 1});
      sharded->set_requires_gradient_sync(false);
      task.model->loss(task.x, task.y).backward();
      kept.zero_();
      sharded->set_requires_gradient_sync(true);
      task.model->loss(task.x, task.y).backward();
      at::Tensor expected = 2 * task.x * task.y;
      world.group()
          .all_reduce({expected.data_ptr(), 64, base::DType::kFloat64}, comm::ReduceOp::kSum, {})
          .wait();
      expect_whole(*sharded, expected);
      const at::Tensor last = kept;
      sharded.reset();
      task.model.reset();
      world.group().barrier({});
      EXPECT_TRUE(at::allclose(last, task.x * task.y));  // its memory outlives what it came from
    });
  }
}

TEST(StepMemory, HoldsLargeTensorsOfTheThreadThatAskedForIt) {
  comm::run_as_threads(2, [](comm::World& world) {
    constexpr std::int64_t kLarge = 1 << 16;
    auto memory = StepMemory::make(world.group(), {});
    const auto is_there = [&](std::int64_t bytes) {
      return memory->offset_of(at::empty({bytes}, at::kByte).data_ptr()) != -1;
    };
    EXPECT_FALSE(is_there(kLarge));
    make_tensors_in(memory);
    EXPECT_TRUE(is_there(kLarge));
    EXPECT_FALSE(is_there(kLarge - 1));
    std::thread([&] { EXPECT_FALSE(is_there(kLarge)); }).join();
    at::Tensor last = at::ones({kLarge}, at::kByte);
    EXPECT_EQ(memory->offset_of(last.data_ptr()), 0);
    world.group().barrier({});
    memory.reset();  // the tensor still holds it
    EXPECT_EQ(last.sum().item<std::int64_t>(), kLarge);
  });
}

TEST(StepMemory, GivesBackWhatTwoStepsHaveNotNeeded) {
  const auto memory = StepMemory::make(comm::single_rank().group(), {});
  make_tensors_in(memory);
  const auto first_byte_after = [&](std::int64_t bytes) {
    const std::int64_t place = memory->offset_of(at::full({bytes}, 7, at::kByte).const_data_ptr());
    memory->trim();
    return static_cast<int>(*memory->at(0, place + bytes - 1));
  };
  EXPECT_EQ(first_byte_after(8 << 20), 7);
  EXPECT_EQ(first_byte_after(1 << 20), 7);
  at::full({1 << 20}, 7, at::kByte);
  memory->trim();
  EXPECT_EQ(static_cast<int>(*memory->at(0, (8 << 20) - 1)), 0);
  EXPECT_EQ(static_cast<int>(*memory->at(0, (1 << 20) - 1)), 7);
  make_tensors_in(nullptr);
}

struct WithEmpty : testing::Model {
  WithEmpty() {
    empty = register_parameter("empty", at::zeros({0, 3}, at::kDouble));
    weight = register_parameter("weight", at::ones({3}, at::kDouble));
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor&) override {
    return (weight * x).sum() + empty.sum();
  }
  at::Tensor empty, weight;
};

TEST(StepMemory, AnEmptyGradientIsOne) {
  comm::run_as_threads(2, [](comm::World& world) {
    const auto model = std::make_shared<WithEmpty>();
    const auto sharded = fully_shard(model, world.mesh());
    model->loss(at::ones({3}, at::kDouble), {}).backward();
    for (const at::Tensor& shard : sharded.parameters()) EXPECT_TRUE(shard.grad().defined());
  });
}

}  // namespace
}  // namespace fullshard::shard
