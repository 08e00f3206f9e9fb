#include <gtest/gtest.h>

#include <vector>

#include "support/equality.h"
#include "support/networks.h"

// The gradients of shards use the same memory step after step, but for what a user keeps.

namespace fullshard::shard {
namespace {

void backward(testing::Model& model, const testing::Problem& task, comm::World& world,
              std::int64_t step) {
  const auto rows = testing::rows_of_rank(task.batch(step), world.rank(), world.size());
  model.loss(rows.x, rows.y).backward();
}

std::vector<at::Tensor> gradients_of(const ShardedModule& sharded) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& shard : sharded.parameters()) gradients.push_back(shard.grad());
  return gradients;
}

TEST(OwnGradient, WhatAUserKeepsStaysAsItIs) {
  const auto task = testing::mlp_problem({7, 13, 5});
  testing::run_both_ways(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    backward(*model, task, world, 0);
    const std::vector<at::Tensor> kept = gradients_of(sharded);
    std::vector<at::Tensor> values;
    for (const at::Tensor& gradient : kept) values.push_back(gradient.clone());
    for (std::int64_t step = 1; step < 4; ++step) {
      sharded.zero_grad();
      backward(*model, task, world, step);
    }
    for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], values[i])) << i;
  });
}

TEST(OwnGradient, AViewOfOneKeepsItToo) {
  const auto task = testing::mlp_problem({7, 13, 5});
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    backward(*model, task, world, 0);
    const at::Tensor part = sharded.parameters().front().grad().slice(0, 1);
    const at::Tensor values = part.clone();
    sharded.zero_grad();
    backward(*model, task, world, 1);
    EXPECT_TRUE(at::equal(part, values));
  });
}

TEST(OwnGradient, IsTheSameTensorStepAfterStep) {
  const auto task = testing::mlp_problem({7, 13, 5});
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    std::vector<c10::TensorImpl*> first;
    for (std::int64_t step = 0; step < 3; ++step) {
      backward(*model, task, world, step);
      std::vector<c10::TensorImpl*> now;
      for (const at::Tensor& shard : sharded.parameters()) {
        now.push_back(shard.grad().unsafeGetTensorImpl());
      }
      if (step == 0) first = now;
      EXPECT_EQ(now, first);
      sharded.zero_grad();
      EXPECT_EQ(sharded.counters().gradient_bytes, 0);
    }
  });
}

}  // namespace
}  // namespace fullshard::shard
