#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "fullshard/base/error.h"
#include "support/counted_group.h"
#include "support/equality.h"
#include "support/networks.h"

// Jobs on several hosts.

namespace fullshard::shard {
namespace {

using testing::CountedGroup;

// What this rank has sent to other hosts.
std::int64_t bytes_sent(const comm::Mesh& mesh) {
  return mesh.shard->bytes_between_hosts() + mesh.replicate->bytes_between_hosts() +
         mesh.all->bytes_between_hosts();
}

TEST(Behaviours, P7_BetweenHostsGoReducedGradientsOfTheShardsOnly) {
  const auto task = testing::gpt_problem(17, 6, 3);
  const testing::TrainOptions one{.steps = 1};
  const StateDict expected = testing::train_reference(task, one);
  testing::run_on_hosts(2, 2, [&](comm::World& world) {
    const auto model = task.build();
    const comm::Mesh mesh = world.mesh({.replicate = 2});
    ASSERT_TRUE(mesh.shard->shares_memory());
    const auto between = std::make_shared<CountedGroup>(mesh.replicate);
    const auto all = std::make_shared<CountedGroup>(mesh.all);
    const auto sharded = fully_shard(model, comm::Mesh{mesh.shard, between, all},
                                     {.sharding_strategy = ShardingStrategy::HYBRID_SHARD});
    between->counts = {};
    all->counts = {};
    const std::int64_t sent_before = bytes_sent(mesh);
    const std::int64_t counted_before = sharded.counters().bytes_between_hosts;
    testing::train_steps(*model, sharded, world, task, one);
    const Counters counters = sharded.counters();
    EXPECT_GT(counters.all_gathers, 0);
    EXPECT_EQ(between->counts.all_reduce, counters.parameter_shard_bytes);
    // An all_reduce between two ranks sends as much as it reduces.
    EXPECT_EQ(bytes_sent(mesh) - sent_before, counters.parameter_shard_bytes);
    EXPECT_EQ(counters.bytes_between_hosts - counted_before, counters.parameter_shard_bytes);
    for (const auto& group : {between, all}) {
      EXPECT_EQ(group->counts.all_gather, 0);
      EXPECT_EQ(group->counts.reduce_scatter, 0);
      EXPECT_EQ(group->counts.broadcast, 0);
    }
    EXPECT_EQ(all->counts.all_reduce, 0);
    testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
  });
}

// Sharded over all ranks of all hosts, a unit crosses to each other host once for every gather, and
// its gradient once, as sums of a host.
TEST(Behaviours, P7_ShardedOverHostsTheyExchangeEachPartOnce) {
  const auto task = testing::gpt_problem(17, 6, 3);
  const testing::TrainOptions one{.steps = 1};
  const StateDict expected = testing::train_reference(task, one);
  testing::run_on_hosts(2, 2, [&](comm::World& world) {
    const auto model = task.build();
    const auto all = std::make_shared<CountedGroup>(world.mesh().all);
    const auto sharded = fully_shard(model, comm::Mesh{all, world.mesh().replicate, all}, {});
    all->counts = {};
    const std::int64_t sent_before = all->bytes_between_hosts();
    const std::int64_t counted_before = sharded.counters().bytes_between_hosts;
    testing::train_steps(*model, sharded, world, task, one);
    std::int64_t sent = all->bytes_between_hosts() - sent_before;
    EXPECT_EQ(sharded.counters().bytes_between_hosts - counted_before, sent);
    EXPECT_GT(all->counts.all_gather, 0);
    EXPECT_GT(all->counts.reduce_scatter, 0);
    EXPECT_EQ(all->counts.broadcast + all->counts.all_reduce, 0);
    world.group().all_reduce({&sent, 1, base::DType::kInt64}, comm::ReduceOp::kSum, {}).wait();
    EXPECT_EQ(sent, all->counts.all_gather + all->counts.reduce_scatter);
    testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
  });
}

// Two ranks of a host share memory, so they may differ; replicas of a shard may not, unless
// `dynamic`.
struct Optional : testing::Model {
  Optional() {
    for (const char* name : {"a", "b", "c"}) {
      units.push_back(register_module(name, torch::nn::Linear(4, 4)));
    }
    to(at::kDouble);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    at::Tensor h = units[0](x);
    if (uses_b) h = h + torch::tanh(units[1](h));
    return (units[2](h) - y).pow(2).mean();
  }
  std::vector<torch::nn::Linear> units;
  bool uses_b = true;
};

void train_where_some_skip(const std::function<bool(int rank)>& uses_b, bool dynamic) {
  const auto task = testing::problem_of<Optional>(4, 4);
  const auto reference = task.build();
  for (int rank = 0; rank < 4; ++rank) {
    const auto rows = testing::rows_of_rank(task.batch(0), rank, 4);
    static_cast<Optional&>(*reference).uses_b = uses_b(rank);
    (reference->loss(rows.x, rows.y) / 4).backward();
  }
  testing::run_on_hosts(2, 2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh({.replicate = 2}),
                                     {.auto_wrap_policy = wrap_named({"a", "b", "c"}),
                                      .sharding_strategy = ShardingStrategy::HYBRID_SHARD,
                                      .dynamic = dynamic});
    static_cast<Optional&>(*model).uses_b = uses_b(world.rank());
    const auto rows = testing::rows_of_rank(task.batch(0), world.rank(), 4);
    model->loss(rows.x, rows.y).backward();
    testing::expect_gradients_of(sharded, *reference);
  });
}

TEST(Behaviours, C1_WithSeveralHostsARankSkipsAUnit) {
  train_where_some_skip([](int rank) { return rank != 3; }, /*dynamic=*/true);
  train_where_some_skip([](int rank) { return rank < 2; }, /*dynamic=*/true);
  train_where_some_skip([](int) { return false; }, /*dynamic=*/false);
}

// What each rank's training ends in, when one rank of the second host skips a unit from step 1 on
// and nothing says that ranks may differ. A rank that fails leaves, as a process would.
std::vector<std::string> messages_where_rank3_skips(std::chrono::seconds timeout) {
  const auto task = testing::problem_of<Optional>(4, 4);
  std::vector<std::string> messages(4);
  testing::run_on_hosts(
      2, 2,
      [&](comm::World& world) {
        try {
          const comm::Mesh mesh = world.mesh({.replicate = 2});
          const auto model = task.build();
          const auto sharded = fully_shard(model, mesh,
                                           {.auto_wrap_policy = wrap_named({"a", "b", "c"}),
                                            .sharding_strategy = ShardingStrategy::HYBRID_SHARD});
          for (std::int64_t step = 0; step < 3; ++step) {
            static_cast<Optional&>(*model).uses_b = world.rank() != 3 || step == 0;
            const auto rows = testing::rows_of_rank(task.batch(step), world.rank(), 4);
            model->loss(rows.x, rows.y).backward();
          }
          messages[static_cast<std::size_t>(world.rank())] = "no error";
        } catch (const base::Error& error) {
          messages[static_cast<std::size_t>(world.rank())] = error.what();
          world.group().abort(error.what());
        }
      },
      {.timeout = timeout});
  return messages;
}

TEST(Behaviours, C1_WithSeveralHostsWithoutDynamicTheRanksThatDifferAreNamed) {
  constexpr auto kTimeout = std::chrono::seconds(5);
  const auto start = std::chrono::steady_clock::now();
  const auto messages = messages_where_rank3_skips(kTimeout);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kTimeout + std::chrono::seconds(10));
  using ::testing::AllOf;
  using ::testing::AnyOf;
  using ::testing::HasSubstr;
  // Ranks 1 and 3 are the replicas whose reductions do not meet; all end.
  EXPECT_THAT(messages, ::testing::Each(::testing::Not("no error")));
  EXPECT_THAT(messages, ::testing::Contains(AllOf(HasSubstr("unit 'b'"), HasSubstr("all_reduce"))));
  EXPECT_THAT(messages[3],
              AllOf(HasSubstr("rank 3 has used"), HasSubstr("and not"), HasSubstr("'b'")));
}

}  // namespace
}  // namespace fullshard::shard
