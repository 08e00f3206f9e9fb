// Devices of ranks on several hosts: their sums are those of groups of host memory, bit for bit,
// and they send between the hosts what docs/communication.md says. The hosts are real groups over
// messages, the devices the CPU.

#include <gtest/gtest.h>

#include <vector>

#include "comm/device_ranks.h"
#include "comm/host_map.h"
#include "comm/ranks.h"
#include "comm/values.h"
#include "fullshard/comm/reduce.h"

namespace fullshard::comm::testing {
namespace {

using base::DType;

constexpr std::int64_t kStaging = 4096;

// With rounding in every type of fractions.
Values rough_input(DType dtype, int rank, std::int64_t count) {
  Values values(dtype, count);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto hash = (i * 2'654'435'761 + rank * 40'503) >> 7;
    const std::int64_t limit = dtype == DType::kBool ? 2 : 9001;
    values.set(i, static_cast<double>(hash % limit) / (dtype == DType::kBool ? 1 : 100));
  }
  return values;
}

std::vector<std::int64_t> ragged(int size, std::int64_t longest) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < size; ++rank) {
    counts.push_back(rank % 3 == 1 ? 0 : longest - longest / 10 * rank);
  }
  return counts;
}

std::int64_t total(const std::vector<std::int64_t>& counts) {
  std::int64_t sum = 0;
  for (const std::int64_t count : counts) sum += count;
  return sum;
}

const std::vector<std::vector<int>> kPlaces = {
    {0, 0, 1, 1}, {0, 1, 0, 1, 0}, {0, 0, 0, 1}, {0, 1, 2, 0, 0, 1, 1}, {0, 1, 2}};

class DeviceHosts : public ::testing::TestWithParam<std::vector<int>> {
 protected:
  /// `body` gets the world, which is of host memory, and a group of the same ranks' devices. The
  /// staging is small, so that operations take several rounds.
  static void run(const std::function<void(World&, Group&)>& body) {
    StandIns stand_ins;
    CommOptions options;
    options.staging = kStaging;
    run_hosts_as_threads(
        GetParam(),
        [&](World& world) {
          const auto devices = stand_ins.make_group(world);
          body(world, *devices);
        },
        options);
  }
};

INSTANTIATE_TEST_SUITE_P(Places, DeviceHosts, ::testing::ValuesIn(kPlaces));

void expect_same_bits(World& world, Group& devices, DType dtype, ReduceOp op,
                      std::int64_t longest) {
  SCOPED_TRACE(base::to_string(dtype));
  const auto counts = ragged(world.size(), longest);
  const std::int64_t own = counts[static_cast<std::size_t>(world.rank())];
  Values all = rough_input(dtype, world.rank(), total(counts));
  Values expected(dtype, own);
  Values actual(dtype, own);
  world.group().reduce_scatter(all.input(), expected.buffer(), op, counts, {}).wait();
  devices.reduce_scatter(on_device(all), on_device(actual), op, counts, {}).wait();
  EXPECT_EQ(actual.bytes(), expected.bytes());
  Values copy = all;
  world.group().all_reduce(all.buffer(), op, {}).wait();
  devices.all_reduce(on_device(copy), op, {}).wait();
  EXPECT_EQ(copy.bytes(), all.bytes());
}

TEST_P(DeviceHosts, SumsHaveTheBitsOfHostMemory) {
  run([](World& world, Group& devices) {
    for (const DType dtype : all_dtypes()) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax}) {
        if (can_reduce(dtype, op)) expect_same_bits(world, devices, dtype, op, 700);
      }
    }
    // Twice what a rank of devices sends at a time, and something.
    expect_same_bits(world, devices, DType::kFloat32, ReduceOp::kMean, 2 * 32 * kStaging / 4 + 77);
    expect_same_bits(world, devices, DType::kBFloat16, ReduceOp::kSum, 2 * 32 * kStaging / 2 + 77);
  });
}

TEST_P(DeviceHosts, P7_SendBetweenHostsWhatHostMemoryDoes) {
  run([](World& world, Group& devices) {
    const auto counts = ragged(world.size(), 700);
    const std::vector<std::int64_t> equal(static_cast<std::size_t>(world.size()), 300);
    for (const auto& parts : {counts, equal}) {
      Values mine(DType::kFloat32, parts[static_cast<std::size_t>(world.rank())]);
      Values all(DType::kFloat32, total(parts));
      const auto sent = [&](Group& group, const auto& call) {
        const std::int64_t before = group.bytes_between_hosts();
        call(group);
        return group.bytes_between_hosts() - before;
      };
      const bool layered = HostMap(GetParam()).any_together();
      const auto gather = [&](Group& group) {
        const bool here = &group == &world.group();
        group
            .all_gather(here ? mine.input() : on_device(mine), here ? all.buffer() : on_device(all),
                        parts, {})
            .wait();
      };
      const auto reduce = [&](Group& group) {
        const bool here = &group == &world.group();
        group
            .reduce_scatter(here ? all.input() : on_device(all),
                            here ? mine.buffer() : on_device(mine), ReduceOp::kMean, parts, {})
            .wait();
      };
      const std::int64_t gathered = sent(devices, gather);
      EXPECT_EQ(gathered, sent(world.group(), gather));
      EXPECT_EQ(sent(devices, reduce), sent(world.group(), reduce));
      const std::int64_t hosts = HostMap(GetParam()).hosts();
      const std::int64_t receivers = layered ? hosts - 1 : world.size() - 1;
      EXPECT_EQ(gathered, receivers * mine.count() * 4);
    }
    Values values(DType::kFloat32, 1000);
    const std::int64_t before = devices.bytes_between_hosts();
    devices.broadcast(on_device(values), 1, {}).wait();
    const std::int64_t copies = world.rank() == 1 ? HostMap(GetParam()).hosts() - 1 : 0;
    EXPECT_EQ(devices.bytes_between_hosts() - before, copies * 4000);
  });
}

// A group knows the hosts of its own ranks, as a mesh's do.
TEST_P(DeviceHosts, SubgroupsKnowTheirHosts) {
  run([](World& world, Group& devices) {
    const HostMap hosts(GetParam());
    const std::vector<int>& first = hosts.ranks(0);
    const auto inside = devices.subgroup(first);
    std::vector<int> heads;
    for (int host = 0; host < hosts.hosts(); ++host) heads.push_back(hosts.ranks(host).front());
    const auto across = devices.subgroup(heads);
    for (const auto& group : {inside, across}) {
      if (group == nullptr) continue;
      Values values = rough_input(DType::kFloat32, world.rank(), 5000);
      group->all_reduce(on_device(values), ReduceOp::kMean, {}).wait();
      EXPECT_EQ(group->bytes_between_hosts() > 0, group == across);
    }
  });
}

}  // namespace
}  // namespace fullshard::comm::testing
