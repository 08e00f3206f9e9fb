// The parts of the flight record that need no second rank, and boards, which only shared memory
// has.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "comm/errors.h"
#include "comm/trace/ring.h"
#include "fullshard/comm/flight_record.h"
#include "fullshard/comm/flight_signal.h"
#include "fullshard/comm/world.h"
#include "support/temporary_folder.h"

namespace fullshard::comm::testing {
namespace {

using base::Error;
using base::ErrorCode;
using ::testing::HasSubstr;
using trace::Note;
using trace::Ring;

Note note_of(std::int64_t step) {
  Note note;
  note.step = step;
  note.sequence = static_cast<std::uint64_t>(step);
  note.began_ns = step;
  note.unit = shared::FixedText<64>(std::to_string(step));
  return note;
}

TEST(FlightRing, KeepsTheLastOfMany) {
  Ring ring;
  const auto total = static_cast<std::int64_t>(3 * Ring::kCapacity + 7);
  for (std::int64_t i = 1; i <= total; ++i) {
    ring.end(ring.begin(note_of(i)), FlightState::kFinished, i + 1);
  }
  const auto entries = ring.read();
  ASSERT_EQ(entries.size(), Ring::kCapacity);
  EXPECT_EQ(entries.back().note.step, total);
  EXPECT_EQ(entries.front().note.step, total - static_cast<std::int64_t>(Ring::kCapacity) + 1);
  EXPECT_EQ(ring.recorded(), static_cast<std::uint64_t>(total));
}

TEST(FlightRing, AnEndingThatComesTooLateTouchesNoOtherEntry) {
  Ring ring;
  const Ring::Ticket slow = ring.begin(note_of(1));
  for (std::uint64_t i = 0; i < Ring::kCapacity; ++i) ring.begin(note_of(2));
  ring.end(slow, FlightState::kFailed, 9);
  for (const auto& entry : ring.read()) EXPECT_EQ(entry.state, FlightState::kStarted);
}

TEST(FlightRing, TheFirstEndingCounts) {
  Ring ring;
  const Ring::Ticket ticket = ring.begin(note_of(1));
  ring.end(ticket, FlightState::kFinished, 5);
  ring.end(ticket, FlightState::kFailed, 9);
  ASSERT_EQ(ring.read().size(), 1U);
  EXPECT_EQ(ring.read().front().state, FlightState::kFinished);
  EXPECT_EQ(ring.read().front().ended_ns, 5);
}

// Writers and readers at once: what is read is always one whole entry.
TEST(FlightRing, EntriesAreWholeWhileThreadsWrite) {
  Ring ring;
  constexpr std::int64_t kWrites = 20000;
  std::vector<std::jthread> writers;
  for (int w = 0; w < 3; ++w) {
    writers.emplace_back([&ring, w] {
      for (std::int64_t i = 1; i <= kWrites; ++i) {
        ring.end(ring.begin(note_of(i * 10 + w)), FlightState::kFinished, i);
      }
    });
  }
  std::uint64_t seen = 0;
  bool writing = true;
  do {
    writing = ring.recorded() < 3 * kWrites;
    for (const auto& entry : ring.read()) {
      ASSERT_EQ(entry.note.unit.view(), std::to_string(entry.note.step));
      ASSERT_EQ(entry.note.sequence, static_cast<std::uint64_t>(entry.note.step));
      ++seen;
    }
  } while (writing);
  EXPECT_GT(seen, 0U);
}

TEST(FlightRecordJson, ComesBackAsItWas) {
  run_as_threads(2, [](World& world) {
    auto board = world.group().allocate_signals(2, "tests \"quoted\"");
    board->post(1, 7, "reduce_scatter", {"blocks.1", 3});
    board->wait(1, 7, "reduce_scatter", {"blocks.1", 3});
    std::vector<double> values(4, 1);
    world.group().broadcast({values.data(), 4, base::DType::kFloat64}, 1, {"x", 9}).wait();
    const FlightRecord record = world.flight_record();
    const std::string text = to_json(record);
    EXPECT_EQ(to_json(parse_flight_record(text)), text);
    const FlightRecord back = parse_flight_record(text);
    ASSERT_EQ(back.boards.size(), 1U);
    EXPECT_EQ(back.boards.front().posted, (std::vector<std::uint64_t>{0, 7}));
    const auto post = std::ranges::find(back.entries, FlightKind::kPost, &FlightEntry::kind);
    ASSERT_NE(post, back.entries.end());
    EXPECT_EQ(post->board, "tests \"quoted\"");
    EXPECT_EQ(post->counter, 1U);
    EXPECT_EQ(post->value, 7U);
    EXPECT_EQ(post->unit, "blocks.1");
    EXPECT_EQ(post->step, 3);
    EXPECT_EQ(post->made_by, back.boards.front().made_by);
    world.group().barrier({});
  });
}

TEST(FlightRecordJson, SurvivesNamesThatAreNoUtf8) {
  World world = single_rank();
  world.group().barrier({"\xff\xfe", 1});
  EXPECT_EQ(parse_flight_record(to_json(world.flight_record())).entries.back().step, 1);
}

TEST(FlightRecordJson, ErrorsSayWhatIsWrongWithAFile) {
  const fullshard::testing::TemporaryFolder folder;
  const auto read = [&](const std::string& text) {
    const auto file = folder.path() / "file.json";
    std::ofstream(file) << text;
    return std::string(expect_error(ErrorCode::kFile, [&] { read_flight_record(file); }).what());
  };
  EXPECT_THAT(read("not json"), HasSubstr("file.json: it cannot be read as a flight record"));
  EXPECT_THAT(read("{\"a\": 1}"), HasSubstr("it is no flight record"));
  EXPECT_THAT(read(R"({"format": "fullshard flight record", "version": 99})"),
              HasSubstr("of version 99, and this program reads version 1"));
  EXPECT_THAT(read(R"({"format": "fullshard flight record", "version": 1, "rank": 0})"),
              HasSubstr("world_size"));
  const Error missing =
      expect_error(ErrorCode::kFile, [&] { read_flight_record(folder.path() / "none.json"); });
  EXPECT_THAT(std::string(missing.what()), HasSubstr("none.json"));
  expect_error(ErrorCode::kFile, [&] { read_flight_record(folder.path()); });
}

TEST(FlightRecordFiles, AreWrittenOnDemandAndReplaced) {
  const fullshard::testing::TemporaryFolder folder;
  World world = single_rank();
  const std::string folder_name = (folder.path() / "new").string();
  const std::string file = world.write_flight_record(folder_name, "first");
  EXPECT_EQ(world.write_flight_record(folder_name, "second"), file);
  EXPECT_EQ(read_flight_record(file).reason, "second");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_name), {}), 1);
  expect_error(ErrorCode::kFile, [&] { world.write_flight_record("/proc/no/such", "x"); });
}

TEST(FlightRecordFiles, AFolderThatCannotBeMadeIsSaidInTheError) {
  CommOptions options;
  options.trace_folder = "/proc/no/such";
  run_as_threads(
      2,
      [](World& world) {
        if (world.rank() == 1) return world.group().abort("test");
        const Error error = expect_error(ErrorCode::kPeerLost, [&] { world.group().barrier({}); });
        EXPECT_THAT(std::string(error.what()), HasSubstr("cannot make the folder /proc/no/such"));
      },
      options);
}

TEST(FlightRecordFiles, HoldTheLastOperationsOnly) {
  World world = single_rank();
  constexpr int kCalls = 1500;
  for (int i = 0; i < kCalls; ++i) world.group().barrier({"", i});
  const FlightRecord record = world.flight_record();
  EXPECT_EQ(record.operations, static_cast<std::uint64_t>(kCalls));
  ASSERT_EQ(record.entries.size(), Ring::kCapacity);
  EXPECT_EQ(record.entries.back().step, kCalls - 1);
  for (std::size_t i = 1; i < record.entries.size(); ++i) {
    EXPECT_EQ(record.entries[i].sequence, record.entries[i - 1].sequence + 1);
  }
  EXPECT_EQ(record.groups[record.entries.back().group].begun, static_cast<std::uint64_t>(kCalls));
}

// Boards that are gone are named as long as the ring speaks of them, and forgotten afterwards.
TEST(FlightRecordFiles, ForgetsBoardsThatAreGone) {
  World world = single_rank();
  for (int i = 0; i < 50; ++i) {
    auto board = world.group().allocate_signals(1, "short-lived");
    board->post(0, 1, "x", {});
  }
  const FlightRecord record = world.flight_record();
  EXPECT_TRUE(record.boards.empty());
  const auto named = std::ranges::count(record.entries, "short-lived", &FlightEntry::board);
  EXPECT_EQ(named, 50);
}

// The signal may come at any time, also while every thread of the rank stands still.
TEST(FlightSignals, RecordsAreWrittenWhileRanksAreStuck) {
  const fullshard::testing::TemporaryFolder folder;
  const auto file = [](const auto& of, int rank) {
    return of.path() / ("flight_rank" + std::to_string(rank) + ".json");
  };
  FlightSignal signal(folder.path().string());
  run_as_threads(2, [&](World& world) {
    signal.watch(world);
    world.group().barrier({"watched", 1});
    if (world.rank() == 0) return world.group().barrier({"stuck", 2});
    while (true) {
      ::raise(SIGUSR2);
      // They are written in the order in which the ranks came to be watched.
      const auto both_are_there = [&] {
        return std::filesystem::exists(file(folder, 0)) && std::filesystem::exists(file(folder, 1));
      };
      for (int i = 0; i < 100 && !both_are_there(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (!both_are_there()) continue;
      const auto entries = read_flight_record(file(folder, 0)).entries;
      if (!entries.empty() && entries.back().unit == "stuck") break;
      std::filesystem::remove(file(folder, 0));
      std::filesystem::remove(file(folder, 1));
    }
    const FlightRecord own = read_flight_record(file(folder, 1));
    EXPECT_EQ(own.reason, "SIGUSR2");
    EXPECT_EQ(own.entries.back().unit, "watched");
    world.group().barrier({"stuck", 2});
  });
}

TEST(FlightSignals, LeaveTheSignalAsItWas) {
  struct sigaction before {};
  sigaction(SIGUSR2, nullptr, &before);
  for (int i = 0; i < 3; ++i) const FlightSignal signal("unused");
  struct sigaction after {};
  sigaction(SIGUSR2, nullptr, &after);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
}

}  // namespace
}  // namespace fullshard::comm::testing
