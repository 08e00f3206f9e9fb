#include "fullshard/doctor/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "fullshard/base/error.h"
#include "fullshard/comm/world.h"
#include "support/temporary_folder.h"

// Records of jobs that stand still in known ways.

namespace fullshard::doctor {
namespace {

using comm::FlightEntry;
using comm::FlightKind;
using comm::FlightRecord;
using comm::FlightState;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kSecond = 1'000'000;
constexpr std::int64_t kNow = 1'700'000'000 * kSecond;

/// Writes a record down as its rank would.
class Writer {
 public:
  Writer(int rank, int world_size) {
    record_.rank = rank;
    record_.world_size = world_size;
    record_.host = "host";
    record_.written_us = kNow;
    record_.reason = "SIGUSR2";
    std::vector<int> all;
    for (int r = 0; r < world_size; ++r) all.push_back(r);
    group("world", all);
  }

  Writer& group(const std::string& name, std::vector<int> ranks) {
    record_.groups.push_back({name, std::move(ranks), 0, 0});
    return *this;
  }

  /// The next operation of the newest group.
  Writer& call(const std::string& operation, const std::string& unit, std::int64_t step,
               std::int64_t count = 64) {
    FlightEntry entry;
    comm::FlightGroup& in = record_.groups.back();
    entry.group = record_.groups.size() - 1;
    entry.sequence = ++in.begun;
    in.finished = in.begun;
    entry.operation = operation;
    entry.unit = unit;
    entry.step = step;
    entry.dtype = "float32";
    entry.count = count;
    entry.bytes = 4 * count;
    entry.state = FlightState::kFinished;
    entry.began_us = kNow - 10 * kSecond;
    entry.ended_us = kNow - 9 * kSecond;
    return add(entry);
  }

  /// The newest operation has not ended, or has failed.
  Writer& open(FlightState state = FlightState::kStarted) {
    FlightEntry& entry = record_.entries.back();
    entry.state = state;
    if (state == FlightState::kStarted) entry.ended_us.reset();
    if (entry.kind == FlightKind::kCollective) --record_.groups[entry.group].finished;
    return *this;
  }

  /// A board of the newest group.
  Writer& board(std::vector<std::uint64_t> posted) {
    record_.boards.push_back({record_.groups.size() - 1, 5, "gradient reductions", posted});
    return *this;
  }

  Writer& wait(std::size_t counter, std::uint64_t value, const std::string& unit) {
    FlightEntry entry;
    entry.kind = FlightKind::kWait;
    entry.group = record_.groups.size() - 1;
    entry.operation = "reduce_scatter";
    entry.unit = unit;
    entry.step = static_cast<std::int64_t>(value);
    entry.board = "gradient reductions";
    entry.made_by = 5;
    entry.counter = counter;
    entry.value = value;
    entry.began_us = kNow - 8 * kSecond;
    return add(entry);
  }

  /// Only the last operations are left.
  Writer& keep(std::ptrdiff_t entries) {
    record_.entries.erase(record_.entries.begin(), record_.entries.end() - entries);
    return *this;
  }

  FlightRecord record() const { return record_; }

 private:
  Writer& add(const FlightEntry& entry) {
    ++record_.operations;
    record_.entries.push_back(entry);
    return *this;
  }

  FlightRecord record_;
};

Writer steps(int rank, int world_size, int count) {
  Writer writer(rank, world_size);
  for (int i = 1; i <= count; ++i) writer.call("all_reduce", "norm", i);
  return writer;
}

TEST(DoctorTrace, ARankThatSkipsAnOperationIsNamedWithItsCall) {
  const auto report = analyse({steps(0, 3, 4).call("all_gather", "blocks.4", 5).open().record(),
                               steps(1, 3, 4).call("all_reduce", "blocks.5", 5).open().record(),
                               steps(2, 3, 4).call("all_gather", "blocks.4", 5).open().record()});
  ASSERT_EQ(report.groups.size(), 1U);
  const GroupReport& group = report.groups.front();
  EXPECT_EQ(group.last_common, 4U);
  EXPECT_EQ(group.last_common_call, "all_reduce (64 float32) of unit 'norm' in step 4");
  EXPECT_EQ(group.different, 5U);
  ASSERT_EQ(group.calls.size(), 2U);
  EXPECT_THAT(group.calls[0].ranks, ElementsAre(0, 2));
  EXPECT_THAT(group.calls[1].ranks, ElementsAre(1));
  EXPECT_THAT(report.findings.front(),
              AllOf(HasSubstr("different calls as operation #5"),
                    HasSubstr("rank 1 called all_reduce (64 float32) of unit 'blocks.5'"),
                    HasSubstr("ranks 0 and 2 called all_gather")));
}

TEST(DoctorTrace, OtherSizesAreADifference) {
  const auto report =
      analyse({steps(0, 2, 2).call("all_gather", "x", 3, 100).open(FlightState::kFailed).record(),
               steps(1, 2, 2).call("all_gather", "x", 3, 101).open(FlightState::kFailed).record()});
  EXPECT_THAT(report.findings.front(), AllOf(HasSubstr("rank 0 called all_gather (100 float32)"),
                                             HasSubstr("rank 1 called all_gather (101 float32)")));
}

TEST(DoctorTrace, ARankThatHasNotComeIsNamedWithWhatItDidLast) {
  const auto report = analyse({steps(0, 3, 4).call("all_gather", "blocks.4", 5).open().record(),
                               steps(1, 3, 4).record(),
                               steps(2, 3, 4).call("all_gather", "blocks.4", 5).open().record()});
  const GroupReport& group = report.groups.front();
  EXPECT_THAT(group.missing, ElementsAre(1));
  EXPECT_THAT(group.inside, ElementsAre(0, 2));
  EXPECT_THAT(group.calls, IsEmpty());
  EXPECT_EQ(report.findings.front(),
            "In group world ranks 0 and 2 are in operation #5, all_gather (64 float32) of unit "
            "'blocks.4' in step 5; rank 1 has not come; rank 1 last finished all_reduce (64 "
            "float32) of unit 'norm' in step 4, 9.0 s ago.");
  EXPECT_EQ(group.places[0].state, Place::State::kInside);
  EXPECT_DOUBLE_EQ(group.places[0].seconds, 10);
  EXPECT_EQ(group.places[1].state, Place::State::kFinished);
}

TEST(DoctorTrace, AStoppedRankLeavesNoRecord) {
  const auto report = analyse({steps(0, 3, 4).call("barrier", "", 5).open().record(),
                               steps(2, 3, 4).call("barrier", "", 5).open().record()});
  EXPECT_THAT(report.no_record, ElementsAre(1));
  EXPECT_THAT(report.groups.front().missing, IsEmpty());
  EXPECT_THAT(report.findings.front(), HasSubstr("of rank 1 there is no record"));
  EXPECT_THAT(report.remarks.front(), HasSubstr("no record of rank 1"));
  EXPECT_EQ(report.groups.front().places[1].state, Place::State::kNoRecord);
}

TEST(DoctorTrace, EachGroupIsLinedUpByItself) {
  const auto writer = [](int rank, const std::string& name, std::vector<int> ranks) {
    return steps(rank, 4, 2).group(name, std::move(ranks)).call("all_gather", "a", 3);
  };
  const auto report =
      analyse({writer(0, "world.1", {0, 1}).record(), writer(1, "world.1", {0, 1}).record(),
               writer(2, "world.2", {2, 3}).call("barrier", "", 4).open().record(),
               writer(3, "world.2", {2, 3}).record()});
  ASSERT_EQ(report.groups.size(), 3U);
  EXPECT_EQ(report.findings.size(), 1U);
  EXPECT_THAT(report.findings.front(),
              AllOf(HasSubstr("group world.2"), HasSubstr("rank 3 has not come")));
}

// What is left of one rank's record begins after the end of another's.
TEST(DoctorTrace, RecordsThatOverlapInPartAreLinedUpByTheirCounts) {
  const auto report =
      analyse({steps(0, 2, 2000).call("all_gather", "late", 9).open().keep(1).record(),
               steps(1, 2, 2000).keep(1000).record()});
  const GroupReport& group = report.groups.front();
  EXPECT_EQ(group.last_common, 2000U);
  EXPECT_EQ(group.last_common_call, "all_reduce (64 float32) of unit 'norm' in step 2000");
  EXPECT_THAT(group.missing, ElementsAre(1));
  EXPECT_THAT(group.calls, IsEmpty());
  EXPECT_THAT(report.findings.front(), HasSubstr("rank 1 has not come"));
}

TEST(DoctorTrace, AWaitNamesWhoHasNotSignalled) {
  const auto report = analyse({steps(0, 3, 1).board({7, 7}).wait(1, 7, "blocks.1").record(),
                               steps(1, 3, 1).board({7, 6}).record(),
                               steps(2, 3, 1).board({7, 7}).wait(1, 7, "blocks.1").record()});
  ASSERT_EQ(report.waits.size(), 1U);
  EXPECT_THAT(report.waits.front().waiting, ElementsAre(0, 2));
  EXPECT_THAT(report.waits.front().missing, ElementsAre(1));
  EXPECT_THAT(report.findings.front(),
              AllOf(HasSubstr("ranks 0 and 2 wait for reduce_scatter of unit 'blocks.1' in step 7"),
                    HasSubstr("rank 1 has not come")));
}

TEST(DoctorTrace, AWaitThatIsAboutToEndIsNoFinding) {
  const auto report = analyse({steps(0, 2, 1).board({7}).wait(0, 7, "blocks.1").record(),
                               steps(1, 2, 1).board({7}).record()});
  EXPECT_THAT(report.waits, IsEmpty());
  EXPECT_THAT(report.findings.front(), HasSubstr("No rank waits for another"));
}

// The missing rank came after all, so that its own record shows nothing.
TEST(DoctorTrace, TheFirstToFailIsHeard) {
  FlightRecord first =
      steps(0, 2, 1).board({7}).wait(0, 7, "a").open(FlightState::kFailed).record();
  first.reason = "rank 0: timed out, rank 1 is missing";
  FlightRecord later =
      steps(1, 2, 1).board({7}).wait(0, 7, "a").open(FlightState::kFailed).record();
  later.written_us += kSecond;
  later.reason = "rank 1: cannot go on";
  const auto report = analyse({later, first});
  EXPECT_THAT(report.findings,
              ElementsAre("Rank 0 wrote its record first. Its reason: " + first.reason));
}

TEST(DoctorTrace, RecordsOfDifferentMomentsAreRemarkedOn) {
  FlightRecord late = steps(1, 2, 1).record();
  late.written_us += 3600 * kSecond;
  const auto report = analyse({steps(0, 2, 1).record(), late});
  EXPECT_THAT(report.remarks.front(), HasSubstr("3600 s apart"));
}

TEST(DoctorTrace, TheTextShowsEveryRankAndTheJsonTheSame) {
  const auto report = analyse(
      {steps(0, 3, 4).call("all_gather", "blocks.4", 5).open().record(), steps(1, 3, 4).record()});
  EXPECT_THAT(to_text(report),
              AllOf(HasSubstr("Flight records of 2 of 3 ranks"), HasSubstr(report.findings.front()),
                    HasSubstr("rank 0    in #5 all_gather"), HasSubstr("rank 2    has no record"),
                    HasSubstr("last operation that all finished is #4 all_reduce")));
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json.at("findings").size(), report.findings.size());
  EXPECT_EQ(json.at("groups").at(0).at("missing"), nlohmann::json::array({1}));
  EXPECT_EQ(json.at("groups").at(0).at("places").at(2).at("state"), "no record");
}

class DoctorFiles : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.path() / name) << text;
    return folder_.path() / name;
  }

  static std::string error_of(const std::vector<std::filesystem::path>& files) {
    try {
      read_records(files);
    } catch (const base::Error& error) {
      return error.what();
    }
    ADD_FAILURE() << "did not fail";
    return "";
  }

  fullshard::testing::TemporaryFolder folder_;
};

TEST_F(DoctorFiles, AFolderStandsForItsRecords) {
  write("flight_rank0.json", comm::to_json(steps(0, 2, 1).record()));
  write("flight_rank1.json", comm::to_json(steps(1, 2, 1).record()));
  write("notes.txt", "not a record");
  const std::array<std::filesystem::path, 1> given = {folder_.path()};
  EXPECT_EQ(read_records(given).size(), 2U);
}

TEST_F(DoctorFiles, FilesThatDoNotFitAreNamed) {
  const auto first = write("a.json", comm::to_json(steps(0, 2, 1).record()));
  const auto twin = write("b.json", comm::to_json(steps(0, 2, 1).record()));
  const auto foreign = write("c.json", comm::to_json(steps(1, 3, 1).record()));
  EXPECT_THAT(error_of({first, twin}),
              AllOf(HasSubstr("a.json"), HasSubstr("b.json"), HasSubstr("both of rank 0")));
  EXPECT_THAT(error_of({first, foreign}),
              AllOf(HasSubstr("c.json"), HasSubstr("2 ranks"), HasSubstr("3")));
  EXPECT_THAT(error_of({write("d.json", "[1, 2]")}), HasSubstr("d.json: it is no flight record"));
  EXPECT_THAT(error_of({folder_.path() / "none.json"}), HasSubstr("none.json"));
  std::filesystem::create_directory(folder_.path() / "empty");
  EXPECT_THAT(error_of({folder_.path() / "empty"}), HasSubstr("holds no flight_rank*.json"));
}

// From real ranks: one is late, and the others' records are taken meanwhile.
TEST_F(DoctorFiles, RecordsOfRealRanksAreUnderstood) {
  const std::array<std::filesystem::path, 1> given = {folder_.path()};
  comm::run_as_threads(3, [&](comm::World& world) {
    world.group().barrier({"start", 1});
    if (world.rank() == 1) {
      TraceReport report;
      do {
        world.write_flight_record(folder_.path().string(), "test");
        report = analyse(read_records(given));
      } while (report.groups.empty() || report.groups.front().inside.size() < 2);
      EXPECT_THAT(report.groups.front().missing, ElementsAre(1));
      EXPECT_THAT(report.findings.front(), AllOf(HasSubstr("ranks 0 and 2 are in operation"),
                                                 HasSubstr("barrier of unit 'end' in step 2"),
                                                 HasSubstr("rank 1 has not come")));
      return world.group().barrier({"end", 2});
    }
    std::jthread writer([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        world.write_flight_record(folder_.path().string(), "test");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    world.group().barrier({"end", 2});
  });
}

}  // namespace
}  // namespace fullshard::doctor
