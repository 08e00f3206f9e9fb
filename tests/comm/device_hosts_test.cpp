// Devices of ranks on several hosts: their sums are those of groups of host memory, bit for bit,
// and they send between the hosts what docs/communication.md says. The hosts are real groups over
// messages, the devices the CPU.

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "comm/device_ranks.h"
#include "comm/host_map.h"
#include "comm/ranks.h"
#include "comm/values.h"
#include "fullshard/comm/c10d/gloo.h"
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

// What a gather and a reduction of such parts send from this rank to other hosts.
std::vector<std::int64_t> sent_between_hosts(Group& group, bool devices, DType dtype,
                                             const std::vector<std::int64_t>& counts) {
  Values part(dtype, counts[static_cast<std::size_t>(group.rank())]);
  Values whole(dtype, total(counts));
  const Buffer mine = devices ? on_device(part) : part.buffer();
  const Buffer all = devices ? on_device(whole) : whole.buffer();
  const std::int64_t before = group.bytes_between_hosts();
  group.all_gather(mine, all, counts, {}).wait();
  const std::int64_t between = group.bytes_between_hosts();
  group.reduce_scatter(all, mine, ReduceOp::kMean, counts, {}).wait();
  return {between - before, group.bytes_between_hosts() - between};
}

TEST_P(DeviceHosts, P7_SendBetweenHostsWhatHostMemoryDoes) {
  run([](World& world, Group& devices) {
    const HostMap hosts(GetParam());
    const std::vector<std::int64_t> equal(static_cast<std::size_t>(world.size()), 300);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const auto& counts : {ragged(world.size(), 700), equal}) {
        const auto sent = sent_between_hosts(devices, true, dtype, counts);
        EXPECT_EQ(sent, sent_between_hosts(world.group(), false, dtype, counts));
        const auto bytes = counts[static_cast<std::size_t>(world.rank())] *
                           static_cast<std::int64_t>(base::size_of(dtype));
        EXPECT_EQ(sent.front(), (hosts.hosts() - 1) * bytes);
      }
    }
    Values values(DType::kFloat32, 1000);
    const std::int64_t before = devices.bytes_between_hosts();
    devices.broadcast(on_device(values), 1, {}).wait();
    const std::int64_t copies = world.rank() == 1 ? hosts.hosts() - 1 : 0;
    EXPECT_EQ(devices.bytes_between_hosts() - before, copies * 4000);
  });
}

// A group knows the hosts of its own ranks, as a mesh's do.
TEST_P(DeviceHosts, SubgroupsKnowTheirHosts) {
  run([](World& world, Group& devices) {
    const HostMap hosts(GetParam());
    std::vector<int> heads;
    for (int host = 0; host < hosts.hosts(); ++host) heads.push_back(hosts.ranks(host).front());
    for (const auto& members : {hosts.ranks(0), heads}) {
      const auto group = devices.subgroup(members);
      const auto of_hosts = world.group().subgroup(members);
      if (group == nullptr) continue;
      Values values = rough_input(DType::kFloat32, world.rank(), 5000);
      Values expected = values;
      of_hosts->all_reduce(expected.buffer(), ReduceOp::kMean, {}).wait();
      group->all_reduce(on_device(values), ReduceOp::kMean, {}).wait();
      EXPECT_EQ(values.bytes(), expected.bytes());
      EXPECT_EQ(group->bytes_between_hosts() > 0, members == heads);
    }
  });
}

// Where messages go between all ranks, also of one host, sums are in the order of the ranks.
TEST(DeviceHostsOfMessages, SumsHaveTheBitsOfHostMemory) {
  const auto store = rendezvous::Store::in_memory();
  StandIns stand_ins;
  const std::vector<int> hosts = {0, 1, 0, 1};
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      CommOptions options;
      options.interface = "lo";
      options.host = "host" + std::to_string(hosts[static_cast<std::size_t>(rank)]);
      World world = make_gloo_world(rank, 4, store, options);
      const auto devices = stand_ins.make_group(world);
      expect_same_bits(world, *devices, DType::kFloat32, ReduceOp::kSum, 700);
      const std::vector<std::int64_t> counts = {300, 300, 300, 300};
      EXPECT_EQ(sent_between_hosts(*devices, true, DType::kFloat32, counts),
                sent_between_hosts(world.group(), false, DType::kFloat32, counts));
    });
  }
}

}  // namespace
}  // namespace fullshard::comm::testing
