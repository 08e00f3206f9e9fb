// What every backend does alike: groups of some of the ranks, and meshes of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "comm/errors.h"
#include "comm/ranks.h"
#include "comm/values.h"

namespace fullshard::comm::testing {
namespace {

using base::DType;

class Subgroups : public ::testing::TestWithParam<Backend> {
 protected:
  void run(int size, const std::function<void(World&)>& body) {
    CommOptions options;
    options.timeout = std::chrono::seconds(60);
    run_ranks(GetParam(), size, body, options);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Subgroups, ::testing::ValuesIn(backends()),
                         [](const auto& instance) { return name_of(instance.param); });

TEST_P(Subgroups, SubgroupsNumberRanksInTheOrderOfTheList) {
  run(5, [](World& world) {
    const std::vector<int> odd = {3, 1};
    const std::vector<int> even = {0, 2, 4};
    const auto odd_group = world.group().subgroup(odd);
    const auto even_group = world.group().subgroup(even);
    const bool is_odd = world.rank() % 2 == 1;
    ASSERT_EQ(odd_group != nullptr, is_odd);
    ASSERT_EQ(even_group != nullptr, !is_odd);
    Group& own = is_odd ? *odd_group : *even_group;
    const std::vector<int>& members = is_odd ? odd : even;
    EXPECT_EQ(own.size(), static_cast<int>(members.size()));
    EXPECT_EQ(members[static_cast<std::size_t>(own.rank())], world.rank());
    Values mine = make_input(DType::kInt32, world.rank(), 3);
    Values all(DType::kInt32, 3 * own.size());
    own.all_gather(mine.input(), all.buffer(), {}, {}).wait();
    for (int r = 0; r < own.size(); ++r) {
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(all.get(r * 3 + i),
                  input_value(DType::kInt32, members[static_cast<std::size_t>(r)], i));
      }
    }
    world.group().barrier({});
  });
}

TEST_P(Subgroups, ErrorsOfSubgroupsUseTheNumbersOfTheWorld) {
  run(4, [](World& world) {
    const std::vector<int> pair = {3, 2};
    const auto group = world.group().subgroup(pair);
    if (!group) return;
    if (group->rank() == 0) return group->abort("no more");
    const auto error = expect_error(base::ErrorCode::kPeerLost, [&] { group->barrier({}); });
    EXPECT_EQ(error.rank(), 3);
    EXPECT_NE(std::string(error.what()).find("rank 3 gave up"), std::string::npos);
  });
}

TEST_P(Subgroups, ASubgroupOfOneIsTheIdentity) {
  run(2, [](World& world) {
    const std::vector<int> one = {1};
    const auto group = world.group().subgroup(one);
    ASSERT_EQ(group != nullptr, world.rank() == 1);
    if (!group) return;
    Values values = make_input(DType::kFloat32, 7, 5);
    const auto before = values.bytes();
    group->all_reduce(values.buffer(), ReduceOp::kMean, {}).wait();
    EXPECT_EQ(values.bytes(), before);
  });
}

// One thread of a rank per group, several groups of a rank at once.
TEST_P(Subgroups, GroupsOfARankWorkAtTheSameTime) {
  run(3, [](World& world) {
    const std::vector<int> all = {0, 1, 2};
    const auto first = world.group().subgroup(all);
    const auto second = world.group().subgroup(all);
    const auto work = [&](Group& group, int scale) {
      for (int round = 0; round < 60; ++round) {
        Values values(DType::kInt64, 3000);
        for (std::int64_t i = 0; i < 3000; ++i)
          values.set(i, static_cast<double>(scale * (i + group.rank())));
        group.all_reduce(values.buffer(), ReduceOp::kSum, {"unit", round}).wait();
        for (std::int64_t i = 0; i < 3000; ++i) {
          ASSERT_EQ(values.get(i), static_cast<double>(scale * (3 * i + 3)));
        }
        if (round % 20 == 0 && group.shares_memory()) {
          group.allocate_shared(64, "while others work")->data()[group.rank()] = std::byte{1};
        }
      }
    };
    std::jthread other(work, std::ref(*second), 5);
    work(*first, 2);
    other.join();
    world.group().barrier({});
  });
}

TEST_P(Subgroups, AMeshHasAGroupForEachDirection) {
  run(4, [](World& world) {
    const Mesh mesh = world.mesh({.replicate = 2});
    ASSERT_EQ(mesh.shard->size(), 2);
    ASSERT_EQ(mesh.replicate->size(), 2);
    const auto sum_over = [&](Group& group) {
      Values value(DType::kInt32, 1);
      value.set(0, 1 << world.rank());
      group.all_reduce(value.buffer(), ReduceOp::kSum, {}).wait();
      return static_cast<int>(value.get(0));
    };
    EXPECT_EQ(sum_over(*mesh.shard), world.rank() < 2 ? 3 : 12);
    EXPECT_EQ(sum_over(*mesh.replicate), world.rank() % 2 == 0 ? 5 : 10);
    EXPECT_EQ(sum_over(*mesh.all), 15);
    EXPECT_EQ(mesh.axis("shard"), mesh.shard);
    EXPECT_EQ(mesh.axis("replicate"), mesh.replicate);
    EXPECT_EQ(mesh.axis("all"), mesh.all);
    const base::Error error =
        expect_error(base::ErrorCode::kInvalidArgument, [&] { (void)mesh.axis("pipeline"); });
    EXPECT_THAT(std::string(error.what()), ::testing::HasSubstr("no axis 'pipeline'"));
  });
}

}  // namespace
}  // namespace fullshard::comm::testing
