// What every backend does alike: the collectives, against closed forms.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "comm/ranks.h"
#include "comm/shared_flags.h"
#include "comm/values.h"
#include "fullshard/comm/reduce.h"

namespace fullshard::comm::testing {
namespace {

using base::DType;

// Small staging, so that ordinary sizes take several rounds.
constexpr std::size_t kStaging = 4096;

struct Case {
  Backend backend;
  int size;
};

class Collectives : public ::testing::TestWithParam<Case> {
 protected:
  int size() const { return GetParam().size; }

  void run(const std::function<void(World&)>& body) {
    CommOptions options;
    options.staging = kStaging;
    options.timeout = std::chrono::seconds(60);
    run_ranks(GetParam().backend, size(), body, options);
  }
};

bool is_long() { return std::getenv("FULLSHARD_LONG_TESTS") != nullptr; }

// All of them where ranks are cheap; where they are not, threads cover the sizes, and processes
// show that it is the same for them.
std::vector<int> sizes_of(Backend backend) {
  const std::vector<int> all = {1, 2, 3, 4, 5, 6, 7, 8, 13};
  if (backend == Backend::kMixedStandIn) return {2, 3};
  const bool devices = backend == Backend::kDeviceStandIn || backend == Backend::kNccl;
  if (devices) return {1, 2, 3, 4, 5, 8};
  if (is_long()) return all;
  if (backend == Backend::kDeviceHostsStandIn) return {3, 4, 5, 7};
  switch (backend) {
    case Backend::kGlooProcesses: return {3};
    case Backend::kHostsProcesses: return {4};
    default: return all;
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Backend backend : backends()) {
    for (const int size : sizes_of(backend)) {
      all.push_back({backend, size});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Backends, Collectives, ::testing::ValuesIn(cases()),
                         [](const auto& instance) {
                           return name_of(instance.param.backend) +
                                  std::to_string(instance.param.size);
                         });

// Elements per rank: none, one, odd, a multiple of nothing, more than fits the staging area.
const std::vector<std::int64_t> kCounts = {0, 1, 7, 65, 1024, 5003};

std::vector<std::int64_t> ragged(int size, std::int64_t longest) {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < size; ++r)
    counts.push_back(r % 3 == 1 ? 0 : longest - std::min<std::int64_t>(longest, r));
  return counts;
}

double expected_reduction(DType dtype, ReduceOp op, int size, std::int64_t i) {
  double result = input_value(dtype, 0, i);
  for (int r = 1; r < size; ++r) {
    const double next = input_value(dtype, r, i);
    if (op == ReduceOp::kMin) {
      result = std::min(result, next);
    } else if (op == ReduceOp::kMax) {
      result = std::max(result, next);
    } else {
      result += next;
    }
  }
  if (op == ReduceOp::kMean) result /= size;
  Values rounded(dtype, 1);
  rounded.set(0,
              dtype == DType::kFloat64 ? result : static_cast<double>(static_cast<float>(result)));
  return rounded.get(0);
}

void expect_gathered(const Values& all, std::span<const std::int64_t> counts) {
  std::int64_t at = 0;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    for (std::int64_t i = 0; i < counts[r]; ++i, ++at) {
      ASSERT_EQ(all.get(at), input_value(all.dtype(), static_cast<int>(r), i))
          << "element " << i << " of rank " << r << ", " << base::to_string(all.dtype());
    }
  }
}

TEST_P(Collectives, AllGatherJoinsEqualParts) {
  run([](World& world) {
    for (const DType dtype : all_dtypes()) {
      for (const std::int64_t count : kCounts) {
        Values mine = make_input(dtype, world.rank(), count);
        Values all(dtype, count * world.size());
        world.group().all_gather(mine.input(), all.buffer(), {}, {"u", count}).wait();
        expect_gathered(all,
                        std::vector<std::int64_t>(static_cast<std::size_t>(world.size()), count));
      }
    }
  });
}

TEST_P(Collectives, AllGatherJoinsRaggedParts) {
  run([](World& world) {
    for (const DType dtype : all_dtypes()) {
      for (const std::int64_t count : kCounts) {
        const auto counts = ragged(world.size(), count);
        const std::int64_t own = counts[static_cast<std::size_t>(world.rank())];
        Values mine = make_input(dtype, world.rank(), own);
        Values all(dtype, std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
        world.group().all_gather(mine.input(), all.buffer(), counts, {}).wait();
        expect_gathered(all, counts);
      }
    }
  });
}

TEST_P(Collectives, AllGatherTakesItsPartInPlace) {
  run([](World& world) {
    for (const std::int64_t count : kCounts) {
      Values all(DType::kFloat32, count * world.size());
      Buffer mine = all.part(count * world.rank(), count);
      Values input = make_input(DType::kFloat32, world.rank(), count);
      if (count > 0) std::memcpy(mine.data, input.data(), input.bytes().size());
      world.group().all_gather(mine, all.buffer(), {}, {}).wait();
      expect_gathered(all,
                      std::vector<std::int64_t>(static_cast<std::size_t>(world.size()), count));
    }
  });
}

const std::vector<ReduceOp> kOps = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin,
                                    ReduceOp::kMax};

TEST_P(Collectives, AllReduceCombinesInPlace) {
  run([](World& world) {
    for (const DType dtype : all_dtypes()) {
      for (const ReduceOp op : kOps) {
        if (!can_reduce(dtype, op)) continue;
        for (const std::int64_t count : kCounts) {
          Values values = make_input(dtype, world.rank(), count);
          world.group().all_reduce(values.buffer(), op, {}).wait();
          for (std::int64_t i = 0; i < count; ++i) {
            ASSERT_EQ(values.get(i), expected_reduction(dtype, op, world.size(), i))
                << base::to_string(dtype) << " op " << static_cast<int>(op) << " element " << i;
          }
        }
      }
    }
  });
}

void check_reduce_scatter(World& world, DType dtype, ReduceOp op,
                          std::span<const std::int64_t> counts, bool pass_counts) {
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const auto own = static_cast<std::size_t>(world.rank());
  const std::int64_t first =
      std::accumulate(counts.begin(), counts.begin() + world.rank(), std::int64_t{0});
  Values all = make_input(dtype, world.rank(), total);
  Values mine(dtype, counts[own]);
  world.group()
      .reduce_scatter(all.input(), mine.buffer(), op,
                      pass_counts ? counts : std::span<const std::int64_t>(), {})
      .wait();
  for (std::int64_t i = 0; i < mine.count(); ++i) {
    ASSERT_EQ(mine.get(i), expected_reduction(dtype, op, world.size(), first + i))
        << base::to_string(dtype) << " op " << static_cast<int>(op) << " element " << i;
  }
}

TEST_P(Collectives, ReduceScatterGivesEachRankItsPart) {
  run([](World& world) {
    for (const DType dtype : all_dtypes()) {
      for (const ReduceOp op : kOps) {
        if (!can_reduce(dtype, op)) continue;
        for (const std::int64_t count : {0, 1, 7, 65, 2003}) {
          const std::vector<std::int64_t> equal(static_cast<std::size_t>(world.size()), count);
          check_reduce_scatter(world, dtype, op, equal, false);
          check_reduce_scatter(world, dtype, op, ragged(world.size(), count), true);
        }
      }
    }
  });
}

TEST_P(Collectives, BroadcastCopiesEveryRoot) {
  run([](World& world) {
    for (const DType dtype : all_dtypes()) {
      for (int root = 0; root < world.size(); ++root) {
        for (const std::int64_t count : kCounts) {
          Values values = make_input(dtype, world.rank(), count);
          world.group().broadcast(values.buffer(), root, {}).wait();
          for (std::int64_t i = 0; i < count; ++i)
            ASSERT_EQ(values.get(i), input_value(dtype, root, i));
        }
      }
    }
  });
}

TEST_P(Collectives, AllToAllExchangesRaggedParts) {
  run([](World& world) {
    const auto from_to = [](int from, int to, std::int64_t scale) {
      return (from * 2 + to * 5) % 4 * scale + (from == to ? 1 : 0);
    };
    for (const DType dtype : all_dtypes()) {
      for (const std::int64_t scale : {0, 1, 301}) {
        std::vector<std::int64_t> send_counts;
        std::vector<std::int64_t> recv_counts;
        for (int r = 0; r < world.size(); ++r) {
          send_counts.push_back(from_to(world.rank(), r, scale));
          recv_counts.push_back(from_to(r, world.rank(), scale));
        }
        Values send =
            make_input(dtype, world.rank(),
                       std::accumulate(send_counts.begin(), send_counts.end(), std::int64_t{0}));
        Values recv(dtype,
                    std::accumulate(recv_counts.begin(), recv_counts.end(), std::int64_t{0}));
        world.group().all_to_all(send.input(), send_counts, recv.buffer(), recv_counts, {}).wait();
        std::int64_t at = 0;
        for (int r = 0; r < world.size(); ++r) {
          std::int64_t first = 0;
          for (int to = 0; to < world.rank(); ++to) first += from_to(r, to, scale);
          for (std::int64_t i = 0; i < recv_counts[static_cast<std::size_t>(r)]; ++i, ++at) {
            ASSERT_EQ(recv.get(at), input_value(dtype, r, first + i));
          }
        }
      }
    }
  });
}

TEST_P(Collectives, BarrierHoldsUntilAllHaveCome) {
  const SharedFlags arrivals(size());
  run([&](World& world) {
    for (int round = 1; round <= 200; ++round) {
      arrivals.set(world.rank(), round);
      world.group().barrier({"", round});
      for (int rank = 0; rank < world.size(); ++rank) ASSERT_GE(arrivals.get(rank), round);
    }
  });
}

// The bits of a float sum depend on its order. It is the order of the ranks or, with several hosts,
// that of the ranks of each and then that of the hosts, whatever the staging size and however often
// it is run.
std::vector<std::byte> reduced_bits(World& world, std::int64_t count, DType dtype) {
  Values values(dtype, count);
  for (std::int64_t i = 0; i < count; ++i) {
    values.set(i, std::sin(static_cast<double>(i * 13 + world.rank() * 7919)) *
                      (world.rank() % 2 == 0 ? 1e3 : 1e-3));
  }
  world.group().all_reduce(values.buffer(), ReduceOp::kMean, {}).wait();
  return values.bytes();
}

std::vector<std::byte> expected_bits(const std::vector<int>& hosts, std::int64_t count,
                                     DType dtype) {
  std::vector<Values> sums;  // by host, in fp32
  for (int host = 0; host <= *std::max_element(hosts.begin(), hosts.end()); ++host) {
    std::vector<Values> parts;
    for (std::size_t r = 0; r < hosts.size(); ++r) {
      if (hosts[r] != host) continue;
      parts.emplace_back(dtype, count);
      for (std::int64_t i = 0; i < count; ++i) {
        parts.back().set(i, std::sin(static_cast<double>(i * 13 + static_cast<int>(r) * 7919)) *
                                (r % 2 == 0 ? 1e3 : 1e-3));
      }
    }
    std::vector<const void*> pointers;
    for (Values& part : parts) pointers.push_back(part.data());
    sums.emplace_back(DType::kFloat32, count);
    reduce_parts_to(pointers, dtype, sums.back().data(), DType::kFloat32, count, ReduceOp::kSum);
  }
  Values out(dtype, count);
  for (std::int64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (const Values& of_host : sums) sum += static_cast<float>(of_host.get(i));
    out.set(i, sum / static_cast<float>(hosts.size()));
  }
  return out.bytes();
}

TEST_P(Collectives, SumsHaveTheSameBitsEveryTime) {
  for (const std::size_t staging : {kStaging, 16 * kStaging}) {
    run_ranks(GetParam().backend, size(),
              [](World& world) {
                for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
                  for (const std::int64_t count : {100, 30001}) {
                    const auto expected =
                        expected_bits(hosts_of(GetParam().backend, world.size()), count, dtype);
                    for (int repeat = 0; repeat < 3; ++repeat) {
                      ASSERT_EQ(reduced_bits(world, count, dtype), expected)
                          << base::to_string(dtype);
                    }
                  }
                }
              },
              {.timeout = std::chrono::seconds(60), .staging = staging});
  }
}

TEST_P(Collectives, MixedCallsInARowKeepApart) {
  run([](World& world) {
    Group& group = world.group();
    for (int round = 0; round < 40; ++round) {
      Values sum = make_input(DType::kInt32, world.rank(), 1100 + round);
      group.all_reduce(sum.buffer(), ReduceOp::kSum, {"a", round});
      Values sent = make_input(DType::kFloat32, round, 90);
      group.broadcast(sent.buffer(), round % world.size(), {"b", round});
      Values mine = make_input(DType::kInt8, world.rank(), round);
      Values all(DType::kInt8, round * world.size());
      group.all_gather(mine.input(), all.buffer(), {}, {"c", round});
      group.barrier({"d", round});
      for (std::int64_t i = 0; i < sum.count(); ++i) {
        ASSERT_EQ(sum.get(i), expected_reduction(DType::kInt32, ReduceOp::kSum, world.size(), i));
      }
      for (std::int64_t i = 0; i < 90; ++i)
        ASSERT_EQ(sent.get(i), input_value(DType::kFloat32, round, i));
      expect_gathered(all,
                      std::vector<std::int64_t>(static_cast<std::size_t>(world.size()), round));
    }
  });
}

TEST_P(Collectives, WorksMayBeWaitedForInAnyOrder) {
  run([](World& world) {
    Group& group = world.group();
    std::vector<Values> sums;
    std::vector<Work> works;
    for (int i = 0; i < 12; ++i) sums.push_back(make_input(DType::kInt32, world.rank(), 5000 + i));
    for (Values& sum : sums) works.push_back(group.all_reduce(sum.buffer(), ReduceOp::kSum, {}));
    for (std::size_t i = works.size(); i-- > 0;) {
      works[i].wait();
      EXPECT_TRUE(works[i].done());
      for (std::int64_t at = 0; at < sums[i].count(); ++at) {
        ASSERT_EQ(sums[i].get(at),
                  expected_reduction(DType::kInt32, ReduceOp::kSum, world.size(), at));
      }
    }
  });
}

// Large enough for every way a backend may cut an operation.
TEST_P(Collectives, ManyMegabytes) {
  run_ranks(GetParam().backend, size(), [](World& world) {
    const std::int64_t whole =
        is_long() || world.size() == 2 ? 16 << 20 : 2'100'003;  // 64 MB or 8 MB
    const std::int64_t count = whole / world.size();
    Group& group = world.group();
    const auto root = world.size() - 1;
    Values sent = make_input(DType::kInt32, world.rank(), count);
    group.broadcast(sent.buffer(), root, {}).wait();
    Values mine = make_input(DType::kInt32, world.rank(), count);
    Values all(DType::kInt32, count * world.size());
    group.all_gather(mine.input(), all.buffer(), {}, {}).wait();
    Values sum(DType::kInt32, count);
    group.reduce_scatter(all.input(), sum.buffer(), ReduceOp::kSum, {}, {}).wait();
    for (std::int64_t i = 0; i < count; i += 997) {
      ASSERT_EQ(sent.get(i), input_value(DType::kInt32, root, i));
      ASSERT_EQ(all.get(root * count + i), input_value(DType::kInt32, root, i));
      ASSERT_EQ(sum.get(i), world.size() * input_value(DType::kInt32, world.rank(), i));
    }
  });
}

TEST_P(Collectives, LargerThanTheDefaultStaging) {
  run_ranks(GetParam().backend, size(), [](World& world) {
    const std::int64_t count = 300'001;  // 1.2 MB
    Values values = make_input(DType::kInt32, world.rank(), count);
    world.group().all_reduce(values.buffer(), ReduceOp::kSum, {}).wait();
    for (std::int64_t i = 0; i < count; i += 997) {
      ASSERT_EQ(values.get(i), expected_reduction(DType::kInt32, ReduceOp::kSum, world.size(), i));
    }
  });
}

}  // namespace
}  // namespace fullshard::comm::testing
