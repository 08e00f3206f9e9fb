// What every backend with shared memory does alike: shared memory and signal boards.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "comm/errors.h"
#include "comm/ranks.h"
#include "comm/values.h"

namespace fullshard::comm::testing {
namespace {

using base::DType;

constexpr std::size_t kPage = 4096;

class SharedMemory : public ::testing::TestWithParam<Backend> {
 protected:
  void run(int size, const std::function<void(World&)>& body) {
    CommOptions options;
    options.timeout = std::chrono::seconds(60);
    run_ranks(GetParam(), size, body, options);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, SharedMemory, ::testing::ValuesIn(backends()),
                         [](const auto& instance) { return name_of(instance.param); });

std::byte mark(int rank, std::size_t i) {
  return static_cast<std::byte>((static_cast<std::size_t>(rank) * 31 + i * 7) % 251 + 1);
}

TEST_P(SharedMemory, IsZeroAtFirstAndSeenByAll) {
  run(3, [](World& world) {
    for (const std::size_t each : {std::size_t{0}, std::size_t{1}, kPage - 1, 3 * kPage + 5}) {
      const auto ranks = static_cast<std::size_t>(world.size());
      auto segment = world.group().allocate_shared(each * ranks, "test");
      ASSERT_EQ(segment->size(), each * ranks);
      ASSERT_TRUE(std::all_of(segment->data(), segment->data() + segment->size(),
                              [](std::byte b) { return b == std::byte{0}; }));
      world.group().barrier({"all looked", -1});
      const auto own = static_cast<std::size_t>(world.rank());
      for (std::size_t i = 0; i < each; ++i)
        segment->data()[own * each + i] = mark(world.rank(), i);
      world.group().barrier({"all wrote", -1});
      for (int r = 0; r < world.size(); ++r) {
        for (std::size_t i = 0; i < each; ++i) {
          ASSERT_EQ(segment->data()[static_cast<std::size_t>(r) * each + i], mark(r, i));
        }
      }
      world.group().barrier({"all read", -1});
    }
  });
}

TEST_P(SharedMemory, OutlivesTheOtherRanksHold) {
  run(2, [](World& world) {
    auto segment = world.group().allocate_shared(kPage, "test");
    if (world.rank() == 1) segment->data()[7] = std::byte{42};
    world.group().barrier({});
    if (world.rank() == 1) segment.reset();
    world.group().barrier({});
    if (world.rank() == 0) EXPECT_EQ(segment->data()[7], std::byte{42});
  });
}

TEST_P(SharedMemory, DiscardedPagesReadAsZeroForAllAndOthersStay) {
  run(2, [](World& world) {
    auto segment = world.group().allocate_shared(4 * kPage + 100, "test");
    if (world.rank() == 0) std::fill_n(segment->data(), segment->size(), std::byte{9});
    world.group().barrier({"written", -1});
    ASSERT_EQ(segment->data()[kPage], std::byte{9});
    world.group().barrier({"seen", -1});
    if (world.rank() == 1) {
      segment->discard(kPage - 1, kPage + 2);  // wholly inside: page 1 only
      segment->discard(3 * kPage + 1, kPage);  // no whole page
      segment->discard(4 * kPage, 100);        // the last page is the segment's although not full
    }
    world.group().barrier({"discarded", -1});
    for (std::size_t i = 0; i < segment->size(); ++i) {
      const std::size_t page = i / kPage;
      ASSERT_EQ(segment->data()[i], page == 1 || page == 4 ? std::byte{0} : std::byte{9}) << i;
    }
    world.group().barrier({"checked", -1});
  });
}

TEST_P(SharedMemory, ManySegmentsLiveAtOnce) {
  run(3, [](World& world) {
    std::vector<std::unique_ptr<SharedSegment>> segments;
    for (int i = 0; i < 40; ++i)
      segments.push_back(world.group().allocate_shared(64, "one of many"));
    for (int i = world.rank(); i < 40; i += world.size()) {
      segments[static_cast<std::size_t>(i)]->data()[0] = static_cast<std::byte>(i);
    }
    world.group().barrier({});
    for (int i = 0; i < 40; ++i) {
      ASSERT_EQ(segments[static_cast<std::size_t>(i)]->data()[0], static_cast<std::byte>(i));
    }
  });
}

TEST_P(SharedMemory, BoardsHoldWhatEachRankPosted) {
  run(3, [](World& world) {
    auto board = world.group().allocate_signals(9, "board");
    for (std::size_t i = 0; i < 9; ++i) {
      EXPECT_TRUE(board->reached(i, 0));
      board->post(i, i * 10 + static_cast<std::uint64_t>(world.rank()), "check", {});
    }
    world.group().barrier({});
    for (std::size_t i = 0; i < 9; ++i) {
      for (int r = 0; r < world.size(); ++r) {
        EXPECT_EQ(board->value(r, i), i * 10 + static_cast<std::uint64_t>(r));
      }
      EXPECT_TRUE(board->reached(i, i * 10));
      EXPECT_FALSE(board->reached(i, i * 10 + 1));
    }
    EXPECT_THROW(board->post(1, 9, "check", {}), base::Error) << "counters only grow";
    EXPECT_THROW(board->post(9, 1, "check", {}), base::Error) << "there are nine counters";
    world.group().barrier({});
  });
}

// Data written before a post is there after the wait: a ring of buffers that ranks fill and read in
// turn, with no other synchronisation.
TEST_P(SharedMemory, BoardsOrderDataBetweenRanks) {
  run(3, [](World& world) {
    constexpr std::uint64_t kRounds = 300;
    const auto ranks = static_cast<std::size_t>(world.size());
    auto segment = world.group().allocate_shared(2 * ranks * sizeof(std::uint64_t), "ring");
    auto board = world.group().allocate_signals(1, "written");
    auto* cells = reinterpret_cast<std::uint64_t*>(segment->data());
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      std::uint64_t* half = cells + (round % 2) * ranks;
      half[static_cast<std::size_t>(world.rank())] =
          round * 100 + static_cast<std::uint64_t>(world.rank());
      board->post(0, round, "check", {});
      board->wait(0, round, "ring", {"", static_cast<std::int64_t>(round)});
      for (std::size_t r = 0; r < ranks; ++r) ASSERT_EQ(half[r], round * 100 + r);
    }
    world.group().barrier({});
  });
}

TEST_P(SharedMemory, AWaitForLessThanWhatWasPostedReturns) {
  run(2, [](World& world) {
    auto board = world.group().allocate_signals(1, "board");
    if (world.rank() == 0) {
      board->wait(0, 0, "nothing", {});
      board->post(0, 5, "check", {});
      board->wait(0, 3, "something", {});
    } else {
      board->post(0, 4, "check", {});
      board->wait(0, 4, "something", {});
    }
    world.group().barrier({});
  });
}

TEST_P(SharedMemory, SubgroupsHaveBoardsAndSegmentsOfTheirOwn) {
  run(3, [](World& world) {
    const std::vector<int> some = {2, 0};
    const auto group = world.group().subgroup(some);
    if (group) {
      auto board = group->allocate_signals(1, "inside a subgroup");
      auto segment = group->allocate_shared(64, "inside a subgroup");
      segment->data()[group->rank()] = std::byte{1};
      board->post(0, 1, "check", {});
      board->wait(0, 1, "check", {});
      EXPECT_EQ(segment->data()[1 - group->rank()], std::byte{1});
      group->barrier({});
    }
    world.group().barrier({});
  });
}

}  // namespace
}  // namespace fullshard::comm::testing
