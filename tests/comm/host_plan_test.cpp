// How collectives over the devices of several hosts are made of messages: that everything arrives,
// and that what crosses between hosts crosses once. No device is needed.

#include "comm/device/host_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "comm/device_plans.h"

namespace fullshard::comm::testing {
namespace {

using device::Exchange;
using device::HostReducePlan;
using device::HostReduceStage;
using device::Piece;
using device::Sum;
using shared::Parts;

struct Case {
  std::vector<int> host_of;
  Counts counts;
  std::int64_t step;

  int size() const { return static_cast<int>(host_of.size()); }
  std::string text() const {
    std::string text = "step " + std::to_string(step) + ", host and count of each rank:";
    for (std::size_t i = 0; i < counts.size(); ++i) {
      text += " " + std::to_string(host_of[i]) + ":" + std::to_string(counts[i]);
    }
    return text;
  }
};

// Hosts of equal and of different size, ranks in order and mixed up, parts that are empty.
std::vector<Case> cases() {
  std::vector<Case> all = {
      {{0, 0, 1, 1}, {4, 4, 4, 4}, 3},
      {{0, 0, 1, 1}, {4, 4, 4, 4}, 100},
      {{0, 1, 0, 1, 0}, {3, 0, 5, 9, 1}, 2},
      {{0, 0, 0, 1}, {0, 0, 0, 0}, 4},
      {{0, 0, 1, 2, 2}, {7, 0, 0, 0, 0}, 1},
      {{0, 0, 0}, {2, 5, 1}, 2},
      {{0, 1, 2}, {2, 5, 1}, 2},
  };
  std::mt19937 random(7);
  const auto any = [&](int limit) {
    return static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  for (int i = 0; i < 200; ++i) {
    Case next;
    const int size = 2 + any(12);
    const int hosts = 1 + any(4);
    for (int rank = 0; rank < size; ++rank) {
      next.host_of.push_back(any(hosts));
      next.counts.push_back(any(4) == 0 ? 0 : any(20));
    }
    next.step = 1 + any(8);
    all.push_back(std::move(next));
  }
  return all;
}

std::int64_t elements_across(const Case& test, const std::vector<Exchange>& of_ranks) {
  std::int64_t total = 0;
  for (std::size_t from = 0; from < of_ranks.size(); ++from) {
    for (const Piece& send : of_ranks[from].sends) {
      const bool away = test.host_of[from] != test.host_of[static_cast<std::size_t>(send.peer)];
      if (away) total += send.count;
    }
  }
  return total;
}

TEST(HostPlan, AnAllGatherBringsEveryPartToAllAndToEachHostOnce) {
  for (const Case& test : cases()) {
    SCOPED_TRACE(test.text());
    const Parts parts = parts_of(test.counts);
    const HostMap hosts(test.host_of);
    std::vector<std::vector<Exchange>> plans;
    std::vector<Numbers> all;
    for (int rank = 0; rank < test.size(); ++rank) {
      plans.push_back(device::plan_all_gather(parts, hosts, rank, test.step));
      const auto r = static_cast<std::size_t>(rank);
      all.emplace_back(static_cast<std::size_t>(parts.total), -1);
      const Numbers own = numbers(parts.counts[r], parts.offsets[r]);
      std::copy(own.begin(), own.end(), all.back().begin() + parts.offsets[r]);
    }
    std::int64_t across = 0;
    for (std::size_t stage = 0; stage < plans.front().size(); ++stage) {
      std::vector<Exchange> exchanges;
      for (const auto& plan : plans) exchanges.push_back(plan.at(stage));
      const std::vector<Numbers> before = all;  // what a stage brings, only the next passes on
      deliver(exchanges, before, all);
      across += elements_across(test, exchanges);
    }
    for (const Numbers& gathered : all) ASSERT_EQ(gathered, numbers(parts.total, 0));
    EXPECT_EQ(across, (hosts.hosts() - 1) * parts.total);
  }
}

// Another power of two for each rank, and what tells elements apart: only the sum with each rank's
// addend once has all bits.
std::int64_t value(int rank, std::int64_t element) {
  return (std::int64_t{1} << rank) + 100'000 * element;
}

std::int64_t add(const Sum& sum, std::int64_t i, std::size_t own, const Numbers& of_own,
                 const Numbers& others) {
  std::int64_t total = 0;
  for (std::size_t n = 0; n < sum.addends.size(); ++n) {
    total += (n == own ? of_own : others).at(static_cast<std::size_t>(sum.addends[n] + i));
  }
  return total;
}

/// All ranks of a reduce_scatter, whose scratch is vectors.
struct Reduction {
  explicit Reduction(const Case& of) : test(of), parts(parts_of(of.counts)), hosts(of.host_of) {
    for (int rank = 0; rank < test.size(); ++rank) {
      plans.push_back(device::plan_reduce_scatter(parts, hosts, rank, test.step));
      Numbers values;
      for (std::int64_t i = 0; i < parts.total; ++i) values.push_back(value(rank, i));
      whole.push_back(std::move(values));
      const auto memory = [](std::int64_t count) {
        return Numbers(static_cast<std::size_t>(count), -1);
      };
      addends.push_back(memory(plans.back().addends));
      sums.push_back(memory(plans.back().sums));
      host_sums.push_back(memory(plans.back().host_sums));
      mine.push_back(memory(test.counts[static_cast<std::size_t>(rank)]));
    }
  }

  void exchange(std::size_t stage) {
    std::vector<Exchange> inside;
    std::vector<Exchange> between;
    for (const auto& plan : plans) {
      inside.push_back(plan.stages.at(stage).inside);
      between.push_back(plan.stages.at(stage).across);
    }
    deliver(inside, whole, addends);
    deliver(between, sums, host_sums);
    EXPECT_EQ(elements_across(test, inside), 0);
    across += elements_across(test, between);
  }

  void add_up(std::size_t stage) {
    for (int rank = 0; rank < test.size(); ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      const HostReduceStage& now = plans[r].stages[stage];
      const auto host = static_cast<std::size_t>(hosts.host_of(rank));
      for (std::int64_t i = 0; i < now.result.count; ++i) {
        mine[r].at(static_cast<std::size_t>(now.result.offset + i)) =
            add(now.result, i, host, sums[r], host_sums[r]);
      }
      const auto local = static_cast<std::size_t>(hosts.local(rank));
      for (const Sum& sum : now.sums) {
        for (std::int64_t i = 0; i < sum.count; ++i) {
          sums[r].at(static_cast<std::size_t>(sum.offset + i)) =
              add(sum, i, local, whole[r], addends[r]);
        }
      }
    }
  }

  const Case& test;
  Parts parts;
  HostMap hosts;
  std::vector<HostReducePlan> plans;
  std::vector<Numbers> whole;
  std::vector<Numbers> addends;
  std::vector<Numbers> sums;
  std::vector<Numbers> host_sums;
  std::vector<Numbers> mine;
  std::int64_t across = 0;
};

// In the order that overlaps most: a stage's messages have all arrived before the stage before it
// is added up. So nothing may be overwritten too early, either.
TEST(HostPlan, AReduceScatterAddsEveryAddendOnceAndCrossesOnce) {
  for (const Case& test : cases()) {
    SCOPED_TRACE(test.text());
    Reduction reduction(test);
    const std::size_t stages = reduction.plans.front().stages.size();
    if (stages > 0) reduction.exchange(0);
    for (std::size_t stage = 0; stage < stages; ++stage) {
      if (stage + 1 < stages) reduction.exchange(stage + 1);
      reduction.add_up(stage);
    }
    const std::int64_t bits = (std::int64_t{1} << test.size()) - 1;
    std::int64_t of_others = 0;
    for (int rank = 0; rank < test.size(); ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      for (std::size_t i = 0; i < reduction.mine[r].size(); ++i) {
        const std::int64_t element = reduction.parts.offsets[r] + static_cast<std::int64_t>(i);
        ASSERT_EQ(reduction.mine[r][i], bits + 100'000 * element * test.size());
      }
      of_others += test.counts[r] * (reduction.hosts.hosts() - 1);
    }
    EXPECT_EQ(reduction.across, of_others);
  }
}

TEST(HostPlan, SlicesAreQuartersNeitherShortNorLong) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  EXPECT_EQ(device::choose_slice(4'000'001, 4, 16 * kMiB), 1'000'001);
  EXPECT_EQ(device::choose_slice(1000, 4, 16 * kMiB), 1 << 18);
  EXPECT_EQ(device::choose_slice(1'000'000'000, 4, 16 * kMiB), 1 << 22);
  EXPECT_EQ(device::choose_slice(1000, 8, 4), 1);
}

TEST(HostPlan, ScratchIsTwoSlicesOfWhatARankCarries) {
  const HostMap hosts({0, 0, 1, 1});
  const auto plan = device::plan_reduce_scatter(parts_of({10, 10, 10, 10}), hosts, 0, 4);
  EXPECT_EQ(plan.sums, 2 * 2 * 4);     // of its own part and one of the other host
  EXPECT_EQ(plan.addends, 2 * 2 * 4);  // of one host-mate
  EXPECT_EQ(plan.host_sums, 2 * 4);    // of one other host
}

}  // namespace
}  // namespace fullshard::comm::testing
