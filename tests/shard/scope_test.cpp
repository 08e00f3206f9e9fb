#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fullshard/base/error.h"
#include "support/training.h"

namespace fullshard::shard {
namespace {

using ::testing::HasSubstr;

const testing::Problem kTask = testing::gpt_problem(17, 6, 2);

template <typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(Paging, RawAccessToAnAbsentParameterNamesIt) {
  comm::run_as_threads(2, [](comm::World& world) {
    const auto model = kTask.build();
    const auto sharded = fully_shard(model, world.mesh());
    const at::Tensor weight = model->named_parameters()["blocks.1.up.weight"];
    EXPECT_THAT(message_of([&] { weight.data_ptr<double>(); }), HasSubstr("blocks.1.up.weight"));
    EXPECT_THAT(message_of([&] { weight.const_data_ptr(); }), HasSubstr("blocks.1.up.weight"));
  });
}

TEST(Paging, WritingOutsideAScopeSaysWhatToDo) {
  comm::run_as_threads(2, [](comm::World& world) {
    const auto model = kTask.build();
    const auto sharded = fully_shard(model, world.mesh());
    const at::NoGradGuard no_grad;
    const auto message = message_of([&] { model->parameters()[0].mul_(2); });
    EXPECT_THAT(message, HasSubstr("table.weight"));
    EXPECT_THAT(message, HasSubstr("sharded.parameters()"));
  });
}

TEST(Paging, AnEmbeddingThatChangesItsTableInForwardSaysSo) {
  comm::World world = comm::single_rank();
  struct Table : torch::nn::Module {
    Table() : table(torch::nn::EmbeddingOptions(5, 3).max_norm(0.1)) {
      register_module("table", table);
    }
    torch::nn::Embedding table;
  };
  const auto model = std::make_shared<Table>();
  const auto sharded = fully_shard(model, world.mesh());
  EXPECT_THAT(
      message_of([&] { model->table(at::arange(3)); }),
      ::testing::AllOf(HasSubstr("max_norm changes 'table.weight'"), HasSubstr("`ignore`")));
}

TEST(Paging, UsingAModelWhoseHandleIsGoneSaysSo) {
  comm::World world = comm::single_rank();
  const auto model = kTask.build();
  { const auto sharded = fully_shard(model, world.mesh()); }
  const auto batch = kTask.batch(0);
  EXPECT_THAT(message_of([&] { model->loss(batch.x, batch.y); }), HasSubstr("table.weight"));
}

TEST(Scope, OnlyOneAtATime) {
  comm::World world = comm::single_rank();
  const auto model = kTask.build();
  const auto sharded = fully_shard(model, world.mesh());
  const auto scope = sharded.unsharded();
  EXPECT_THAT(message_of([&] { sharded.unsharded(); }), HasSubstr("open already"));
}

TEST(Scope, CountsItsCopiesAsStaging) {
  comm::World world = comm::single_rank();
  const auto model = kTask.build();
  const auto sharded = fully_shard(model, world.mesh());
  {
    const auto scope = sharded.unsharded();
    EXPECT_GE(sharded.counters().staging_bytes, sharded.parameter_count() * 8);
  }
  EXPECT_EQ(sharded.counters().staging_bytes, 0);
}

TEST(Checksums, RanksThatStartDifferentlyAreAnErrorWithoutSync) {
  const auto run = [] {
    comm::run_as_threads(2, [](comm::World& world) {
      const auto model = kTask.build();
      const at::NoGradGuard no_grad;
      if (world.rank() == 1) model->parameters()[0].add_(1);
      fully_shard(model, world.mesh(), {.sync_module_states = false});
    });
  };
  EXPECT_THAT(message_of(run), HasSubstr("table.weight"));
}

class Sync : public ::testing::TestWithParam<ShardingStrategy> {};

TEST_P(Sync, Rank0sValuesAreTakenEverywhere) {
  comm::run_as_threads(3, [&](comm::World& world) {
    const auto expected = testing::parameters_of(*kTask.build());
    const auto model = kTask.build();
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor parameter : model->parameters()) parameter.add_(world.rank());
    }
    const auto sharded = fully_shard(model, world.mesh(), {.sharding_strategy = GetParam()});
    testing::expect_bitwise_equal(sharded.full_state_dict(), expected);
  });
}

INSTANTIATE_TEST_SUITE_P(Strategies, Sync,
                         ::testing::Values(ShardingStrategy::FULL_SHARD,
                                           ShardingStrategy::SHARD_GRAD_OP,
                                           ShardingStrategy::NO_SHARD));

}  // namespace
}  // namespace fullshard::shard
