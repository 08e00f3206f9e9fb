// How collectives over devices are made of calls, and how they are watched; no device is needed.

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "comm/device/watchman.h"
#include "comm/device_plans.h"
#include "comm/errors.h"

namespace fullshard::comm::testing {
namespace {

using device::Exchange;
using device::Piece;
using shared::Parts;

const std::vector<Counts> kRagged = {{3, 0, 5}, {0, 0, 7}, {1, 2, 3, 4}, {9, 1}, {5}, {0, 4}};

TEST(DevicePlan, EqualPartsAreGatheredInOneCall) {
  EXPECT_TRUE(device::plan_all_gather(parts_of({4, 4, 4}), 1, true).one_call);
  EXPECT_TRUE(device::plan_all_gather(parts_of({4, 4, 4}), 1, true).exchange.empty());
  EXPECT_FALSE(device::plan_all_gather(parts_of({0, 0}), 1, true).one_call);
  EXPECT_FALSE(device::plan_all_gather(parts_of({4, 3}), 1, true).one_call);
  EXPECT_FALSE(device::plan_all_gather(parts_of({4, 4, 4}), 1, false).one_call);
}

void expect_gathered_by_messages(bool may_use_one_call) {
  for (const Counts& counts : kRagged) {
    const Parts parts = parts_of(counts);
    std::vector<Exchange> exchanges;
    std::vector<Numbers> mine;
    std::vector<Numbers> all;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      const auto plan = device::plan_all_gather(parts, static_cast<int>(rank), may_use_one_call);
      EXPECT_EQ(plan.one_call, may_use_one_call && counts.size() == 1);
      exchanges.push_back(plan.exchange);
      mine.push_back(numbers(counts[rank], parts.offsets[rank]));
      all.emplace_back(static_cast<std::size_t>(parts.total), -1);
      std::copy(mine.back().begin(), mine.back().end(), all.back().begin() + parts.offsets[rank]);
    }
    deliver(exchanges, mine, all);
    for (const Numbers& gathered : all) EXPECT_EQ(gathered, numbers(parts.total, 0));
  }
}

TEST(DevicePlan, RaggedPartsAreGatheredByMessages) {
  expect_gathered_by_messages(true);
  expect_gathered_by_messages(false);
}

// What every rank would hold after all rounds: the sums of its part.
void expect_reduced(const Counts& counts, std::int64_t step) {
  const Parts parts = parts_of(counts);
  std::vector<device::ReducePlan> plans;
  std::vector<Numbers> whole;
  std::vector<Numbers> scratch;
  std::vector<Numbers> sums;
  const auto size = static_cast<std::int64_t>(counts.size());
  for (std::int64_t rank = 0; rank < size; ++rank) {
    plans.push_back(device::plan_reduce_scatter(parts, static_cast<int>(rank), step));
    whole.push_back(numbers(parts.total, rank * 1000));
    scratch.emplace_back(static_cast<std::size_t>(plans.back().scratch), -1);
    sums.emplace_back(static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]), -1);
  }
  for (std::size_t round = 0; round < plans.front().rounds.size(); ++round) {
    std::vector<Exchange> exchanges;
    for (const auto& plan : plans) exchanges.push_back(plan.rounds.at(round).exchange);
    deliver(exchanges, whole, scratch);
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      const device::Sum& now = plans[rank].rounds[round].sum;
      for (std::int64_t i = 0; i < now.count; ++i) {
        std::int64_t sum = 0;
        for (std::size_t from = 0; from < plans.size(); ++from) {
          const Numbers& source = from == rank ? whole[rank] : scratch[rank];
          sum += source.at(static_cast<std::size_t>(now.addends[from] + i));
        }
        sums[rank].at(static_cast<std::size_t>(now.offset + i)) = sum;
      }
    }
  }
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (std::size_t i = 0; i < sums[rank].size(); ++i) {
      const std::int64_t element = parts.offsets[rank] + static_cast<std::int64_t>(i);
      EXPECT_EQ(sums[rank][i], size * element + 1000 * size * (size - 1) / 2);
    }
  }
}

TEST(DevicePlan, ReduceScatterBringsEveryAddendOnceWhateverTheStep) {
  for (const Counts& counts : kRagged) {
    for (const std::int64_t step : {1, 2, 3, 100}) expect_reduced(counts, step);
  }
  expect_reduced({4, 4, 4}, 3);
}

TEST(DevicePlan, ScratchIsTwoRoundsOfTheOwnPart) {
  EXPECT_EQ(device::plan_reduce_scatter(parts_of({10, 10, 10}), 0, 4).scratch, 2 * 2 * 4);
  EXPECT_EQ(device::plan_reduce_scatter(parts_of({10, 3, 10}), 1, 4).scratch, 2 * 2 * 3);
  EXPECT_EQ(device::plan_reduce_scatter(parts_of({10}), 0, 4).scratch, 0);
}

// A round's pieces are still being combined while those of the next one arrive.
TEST(DevicePlan, RoundsInARowUseDifferentScratch) {
  const auto plan = device::plan_reduce_scatter(parts_of({8, 8, 8}), 1, 3);
  ASSERT_EQ(plan.rounds.size(), 3U);
  for (std::size_t round = 0; round + 1 < plan.rounds.size(); ++round) {
    for (const Piece& now : plan.rounds[round].exchange.recvs) {
      for (const Piece& next : plan.rounds[round + 1].exchange.recvs) {
        EXPECT_TRUE(now.offset + now.count <= next.offset ||
                    next.offset + next.count <= now.offset);
      }
    }
  }
}

TEST(DevicePlan, EvenCutsAreWholeBlocks) {
  EXPECT_EQ(device::cut_evenly(100, 3, 16).counts, (Counts{48, 48, 4}));
  EXPECT_EQ(device::cut_evenly(10, 3, 16).counts, (Counts{10, 0, 0}));
  EXPECT_EQ(device::cut_evenly(96, 3, 16).counts, (Counts{32, 32, 32}));
}

struct Watched {
  std::atomic<int> looks = 0;
  std::atomic<bool> dead = false;
  std::atomic<bool> interrupted = false;
  device::Watchman watchman{{[this] {
                               ++looks;
                               if (dead) throw base::Error(base::ErrorCode::kPeerLost, "gone", 3);
                             },
                             [] { throw base::Error(base::ErrorCode::kTimeout, "too late"); },
                             [this] { interrupted = true; }}};

  void wait_until_interrupted() const {
    while (!interrupted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};

TEST(Watchman, SaysNothingOfAnOperationThatEndsWell) {
  Watched watched;
  for (int i = 0; i < 3; ++i) {
    watched.watchman.begin(base::Deadline::after(std::chrono::minutes(1)));
    watched.watchman.end();
  }
  EXPECT_FALSE(watched.interrupted);
}

TEST(Watchman, InterruptsWhenTheDeadlineHasPassed) {
  Watched watched;
  watched.watchman.begin(base::Deadline::after(std::chrono::milliseconds(1)));
  watched.wait_until_interrupted();
  expect_error(base::ErrorCode::kTimeout, [&] { watched.watchman.end(); });
}

TEST(Watchman, InterruptsWhenARankDies) {
  Watched watched;
  watched.watchman.begin(base::Deadline::after(std::chrono::minutes(1)));
  while (watched.looks < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(watched.interrupted);
  watched.dead = true;
  watched.wait_until_interrupted();
  EXPECT_EQ(expect_error(base::ErrorCode::kPeerLost, [&] { watched.watchman.end(); }).rank(), 3);
  watched.dead = false;
  watched.watchman.begin(base::Deadline::after(std::chrono::minutes(1)));
  watched.watchman.end();  // what was is forgotten
}

// As the abort of a backend may, whose devices do not answer.
TEST(Watchman, AnInterruptThatBlocksHoldsUpNobody) {
  std::promise<void> begun;
  std::promise<void> let_go;
  device::Watchman watchman{{[] { throw base::Error(base::ErrorCode::kPeerLost, "gone", 3); },
                             [] {},
                             [&] {
                               begun.set_value();
                               let_go.get_future().wait();
                             }}};
  watchman.begin(base::Deadline::after(std::chrono::minutes(1)));
  begun.get_future().wait();
  EXPECT_EQ(expect_error(base::ErrorCode::kPeerLost, [&] { watchman.end(); }).rank(), 3);
  let_go.set_value();
}

}  // namespace
}  // namespace fullshard::comm::testing
