#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "fullshard/base/error.h"
#include "support/equality.h"
#include "support/networks.h"

// Errors of ranks that use different units say what each has used.

namespace fullshard::shard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Units a to d, of which one may be left out.
struct Optional : testing::Model {
  Optional() {
    for (const char* name : {"a", "b", "c", "d"}) {
      units.push_back(register_module(name, torch::nn::Linear(4, 4)));
    }
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    at::Tensor h = x;
    for (std::size_t i = 0; i < units.size(); ++i) {
      if (static_cast<int>(i) != skipped) h = torch::tanh(units[i](h));
    }
    return (h - y).pow(2).mean();
  }
  std::vector<torch::nn::Linear> units;
  int skipped = -1;
};

const testing::Problem kTask = testing::problem_of<Optional>(4, 4);

struct Job {
  ShardingStrategy strategy = ShardingStrategy::FULL_SHARD;
  int replicate = 1;
  int skipped = 2;  // the unit
  std::function<bool(std::int64_t step, int rank)> skips = [](std::int64_t step, int rank) {
    return step == 2 && rank == 1;
  };
};

// Steps until the rank fails; its error.
std::string error_of(const Job& job, comm::World& world) {
  const auto model = kTask.build();
  const auto sharded = fully_shard(
      model, world.mesh({.replicate = job.replicate}),
      {.auto_wrap_policy = wrap_named({"a", "b", "c", "d"}), .sharding_strategy = job.strategy});
  const auto optimizer = testing::stock_optimizer(testing::Optimizer::kSgd, sharded.parameters());
  try {
    for (std::int64_t step = 0; step < 4; ++step) {
      const auto batch = testing::rows_of_rank(kTask.batch(step), world.rank(), world.size());
      static_cast<Optional&>(*model).skipped = job.skips(step, world.rank()) ? job.skipped : -1;
      optimizer->zero_grad();
      model->loss(batch.x, batch.y).backward();
      optimizer->step();
    }
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kMismatch) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "rank " << world.rank() << " did not fail";
  return "";
}

std::vector<std::string> errors_of(const Job& job, int ranks) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  testing::run_over_gloo(ranks, [&](comm::World& world) {
    errors[static_cast<std::size_t>(world.rank())] = error_of(job, world);
  });
  return errors;
}

std::string used(int rank, const std::string& units) {
  return "in this step rank " + std::to_string(rank) + " has used " + units;
}

TEST(Difference, EachRankSaysWhatItHasUsedAndWhatNot) {
  for (const auto strategy : {ShardingStrategy::FULL_SHARD, ShardingStrategy::SHARD_GRAD_OP,
                              ShardingStrategy::SHARD_OPTIMIZER_ONLY, ShardingStrategy::NO_SHARD}) {
    for (int skipped = 0; skipped < 4; ++skipped) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(strategy) << " " << skipped);
      const auto errors = errors_of({.strategy = strategy, .skipped = skipped}, 2);
      const std::string name = std::string("'") + "abcd"[skipped] + "'";
      EXPECT_THAT(errors[0], AllOf(HasSubstr("ranks made different calls"),
                                   HasSubstr("in this step rank 0 has used 'a'")));
      EXPECT_THAT(errors[1], HasSubstr("not, so far, "));
      const std::size_t account = errors[1].find("in this step rank 1 has used");
      ASSERT_NE(account, std::string::npos) << errors[1];
      const std::string mine = errors[1].substr(account);
      EXPECT_THAT(mine.substr(0, mine.find(", and not")), Not(HasSubstr(name)));
      EXPECT_THAT(mine.substr(mine.find(", and not")), HasSubstr(name));
    }
  }
}

TEST(Difference, InTheFirstStepThereIsNoneBefore) {
  const auto errors = errors_of({.skips = [](std::int64_t, int rank) { return rank == 1; }}, 2);
  EXPECT_THAT(errors[0], HasSubstr(used(0, "'a', 'b', 'c'")));
  EXPECT_THAT(errors[1], HasSubstr(used(1, "'a', 'b', 'd'")));
  EXPECT_THAT(errors[1], Not(HasSubstr("so far")));
}

TEST(Difference, OfSeveralRanksOneThatWasTheOnlyOneToUseAUnit) {
  const auto errors =
      errors_of({.skips = [](std::int64_t step, int rank) { return step == 1 && rank != 2; }}, 3);
  for (const int rank : {0, 1}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                HasSubstr(used(rank, "'a', 'b', 'd', and not, so far, 'c' as in the step before")));
  }
  EXPECT_THAT(errors[2], HasSubstr(used(2, "'a', 'b', 'c', 'd'")));
}

TEST(Difference, BetweenReplicasOnSeveralHosts) {
  const Job job{.replicate = 2,
                .skips = [](std::int64_t step, int rank) { return step == 2 && rank >= 2; }};
  std::vector<std::string> errors(4);
  testing::run_on_hosts(2, 2, [&](comm::World& world) {
    errors[static_cast<std::size_t>(world.rank())] = error_of(job, world);
  });
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(
        errors[static_cast<std::size_t>(rank)],
        HasSubstr(rank < 2 ? used(rank, "'a', 'b', 'c', 'd'")
                           : used(rank, "'a', 'b', 'd', and not, so far, 'c' as in the step")));
  }
}

}  // namespace
}  // namespace fullshard::shard
