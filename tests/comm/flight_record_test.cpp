#include "fullshard/comm/flight_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "comm/errors.h"
#include "comm/ranks.h"
#include "comm/shared_flags.h"
#include "support/temporary_folder.h"

namespace fullshard::comm::testing {
namespace {

using base::Error;
using base::ErrorCode;
using ::testing::AllOf;
using ::testing::HasSubstr;

class FlightRecords : public ::testing::TestWithParam<Backend> {
 protected:
  static void run(int size, const std::function<void(World&)>& body,
                  const CommOptions& options = {}) {
    run_ranks(GetParam(), size, body, options);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, FlightRecords, ::testing::ValuesIn(backends()),
                         [](const auto& instance) { return name_of(instance.param); });

// The entries of one operation, oldest first.
std::vector<FlightEntry> find(const FlightRecord& record, const std::string& operation) {
  std::vector<FlightEntry> found;
  for (const FlightEntry& entry : record.entries) {
    if (entry.operation == operation) found.push_back(entry);
  }
  return found;
}

TEST_P(FlightRecords, HoldWhatWasCalledAndWhen) {
  run(3, [](World& world) {
    std::vector<float> values(10, 1);
    world.group()
        .all_reduce({values.data(), 10, base::DType::kFloat32}, ReduceOp::kMax, {"blocks.4", 12})
        .wait();
    world.group().barrier({});
    const FlightRecord record = world.flight_record();
    EXPECT_EQ(record.rank, world.rank());
    EXPECT_EQ(record.world_size, 3);
    EXPECT_EQ(record.operations, record.entries.size());
    const auto reductions = find(record, "all_reduce");
    ASSERT_EQ(reductions.size(), 1U);
    const FlightEntry& entry = reductions.front();
    EXPECT_EQ(record.groups[entry.group].name, "world");
    EXPECT_EQ(record.groups[entry.group].ranks, (std::vector{0, 1, 2}));
    EXPECT_EQ(entry.unit, "blocks.4");
    EXPECT_EQ(entry.step, 12);
    EXPECT_EQ(entry.dtype, "float32");
    EXPECT_EQ(entry.reduction, "max");
    EXPECT_EQ(entry.count, 10);
    EXPECT_EQ(entry.bytes, 40);
    EXPECT_EQ(entry.state, FlightState::kFinished);
    ASSERT_TRUE(entry.ended_us.has_value());
    EXPECT_LE(entry.began_us, *entry.ended_us);
    EXPECT_LE(*entry.ended_us, record.written_us);
    const auto barriers = find(record, "barrier");
    ASSERT_FALSE(barriers.empty());
    EXPECT_EQ(barriers.back().sequence, entry.sequence + 1);
    EXPECT_EQ(barriers.back().dtype, "");
    world.group().barrier({});
  });
}

TEST_P(FlightRecords, GroupsHaveTheSameNameOnAllTheirRanks) {
  run(4, [](World& world) {
    const std::vector<int> even = {2, 0};
    const std::vector<int> odd = {1, 3};
    const auto first = world.group().subgroup(even);
    const auto second = world.group().subgroup(odd);
    const auto& own = first ? first : second;
    own->barrier({"mine", 5});
    const FlightRecord record = world.flight_record();
    const auto mine = std::ranges::find(record.entries, "mine", &FlightEntry::unit);
    ASSERT_NE(mine, record.entries.end());
    const FlightGroup& group = record.groups[mine->group];
    EXPECT_EQ(group.ranks, first ? even : odd);
    EXPECT_EQ(group.begun, mine->sequence);
    EXPECT_EQ(group.finished, mine->sequence);
    // Named by the operation that made it, whose number is the same on all ranks.
    const std::uint64_t made_by = find(record, "subgroup")[first ? 0 : 1].sequence;
    EXPECT_EQ(group.name, "world." + std::to_string(made_by));
    world.group().barrier({});
  });
}

TEST_P(FlightRecords, AnErrorNamesTheFileThatEachRankWrote) {
  const fullshard::testing::TemporaryFolder folder;
  CommOptions options;
  options.timeout = std::chrono::seconds(1);
  options.trace_folder = (folder.path() / "made" / "traces").string();
  const SharedFlags failed(2);
  run(
      2,
      [&](World& world) {
        world.group().barrier({"together", 1});
        if (world.rank() == 1) {
          failed.await(0);
          const Error echo = expect_error(ErrorCode::kTimeout, [&] { world.group().barrier({}); });
          EXPECT_THAT(std::string(echo.what()), HasSubstr("flight_rank1.json"));
          failed.set(1, 1);
          return;
        }
        const Error error = expect_error(ErrorCode::kTimeout, [&] {
          world.group().barrier({"alone", 2});
        });
        failed.set(0, 1);
        failed.await(1);
        const std::string file = options.trace_folder + "/flight_rank0.json";
        EXPECT_THAT(std::string(error.what()), HasSubstr("; flight record: " + file));
        const FlightRecord record = read_flight_record(file);
        EXPECT_THAT(record.reason, AllOf(HasSubstr("'alone'"), HasSubstr("rank 1 is missing")));
        ASSERT_GE(record.entries.size(), 2U);
        EXPECT_EQ(record.entries.back().unit, "alone");
        EXPECT_EQ(record.entries.back().state, FlightState::kFailed);
        EXPECT_EQ(record.entries[record.entries.size() - 2].unit, "together");
        EXPECT_EQ(record.groups[record.entries.back().group].finished,
                  record.entries.back().sequence - 1);
      },
      options);
}

TEST_P(FlightRecords, AnAbortWritesTheRecordsOfAllRanks) {
  const fullshard::testing::TemporaryFolder folder;
  CommOptions options;
  options.trace_folder = folder.path().string();
  const SharedFlags together(3);
  run(
      3,
      [&](World& world) {
        world.group().barrier({"together", 1});
        together.meet(world.rank(), 3);
        if (world.rank() == 1) {
          world.group().abort("out of memory");
        } else {
          expect_error(ErrorCode::kPeerLost, [&] { world.group().barrier({}); });
        }
        const auto file = folder.path() / ("flight_rank" + std::to_string(world.rank()) + ".json");
        EXPECT_THAT(read_flight_record(file).reason, HasSubstr("out of memory"));
      },
      options);
}

TEST_P(FlightRecords, CanBeReadWhileAnotherThreadIsStuck) {
  const SharedFlags seen(1);
  run(2, [&](World& world) {
    if (world.rank() == 1) {
      seen.await(0);
      return world.group().barrier({"stuck", 3});
    }
    const std::jthread looker([&] {
      FlightRecord record;
      while (record.entries.empty() || record.entries.back().unit != "stuck") {
        record = world.flight_record();
      }
      EXPECT_EQ(record.entries.back().state, FlightState::kStarted);
      EXPECT_FALSE(record.entries.back().ended_us.has_value());
      seen.set(0, 1);
    });
    world.group().barrier({"stuck", 3});
  });
}

}  // namespace
}  // namespace fullshard::comm::testing
