#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fullshard::comm {

// What a rank did last, as data: World::flight_record() makes it, files carry it, and
// `fullshard doctor trace` lines up those of all ranks. Times are microseconds since 1970.

/// A group that the rank is or was in.
struct FlightGroup {
  std::string name;            ///< the same on all its ranks: "world", "world.17"
  std::vector<int> ranks;      ///< as numbered in the world
  std::uint64_t begun = 0;     ///< number of the last operation that this rank has begun
  std::uint64_t finished = 0;  ///< number of the last one that ended well
};

/// A signal board that the rank has: a table of counters that ranks raise and wait for.
struct FlightBoard {
  std::size_t group = 0;      ///< index into FlightRecord::groups
  std::uint64_t made_by = 0;  ///< number of the operation that made it: equal on all ranks
  std::string purpose;
  std::vector<std::uint64_t> posted;  ///< this rank's counters
};

enum class FlightKind {
  kCollective,  ///< all ranks of the group take part
  kPost,        ///< raised a counter of a board; at once
  kWait,        ///< waited for all ranks' counter of a board; only waits that had to
};

enum class FlightState { kStarted, kFinished, kFailed };

/// One operation of one rank.
struct FlightEntry {
  FlightKind kind = FlightKind::kCollective;
  FlightState state = FlightState::kStarted;
  std::size_t group = 0;       ///< index into FlightRecord::groups
  std::uint64_t sequence = 0;  ///< of a collective: its number in the group, equal on all ranks
  std::string operation;       ///< "all_gather"
  std::string unit;            ///< empty when it is about none; long names keep their end
  std::int64_t step = -1;      ///< -1 when outside of steps

  // Of a collective:
  std::string dtype;              ///< empty when it moves no elements
  std::string reduction;          ///< "sum"; empty when it reduces nothing
  int root = -1;                  ///< of a broadcast
  std::int64_t count = 0;         ///< elements of the whole; 0 for all_to_all
  std::int64_t bytes = 0;         ///< the same in bytes
  std::uint64_t counts_hash = 0;  ///< of how the whole is cut between the ranks

  // Of a post or a wait:
  std::string board;          ///< what the board is for
  std::uint64_t made_by = 0;  ///< as FlightBoard::made_by
  std::size_t counter = 0;
  std::uint64_t value = 0;

  std::int64_t began_us = 0;
  std::optional<std::int64_t> ended_us;  ///< empty while it goes on
};

/// The last operations of one rank.
struct FlightRecord {
  int rank = 0;
  int world_size = 1;
  std::string host;
  int pid = 0;
  std::int64_t written_us = 0;
  std::string reason;            ///< why it was written
  std::uint64_t operations = 0;  ///< recorded in all; `entries` are the last of them
  std::vector<FlightGroup> groups;
  std::vector<FlightBoard> boards;
  std::vector<FlightEntry> entries;  ///< in the order of their beginning
};

/// As JSON, one operation a line.
std::string to_json(const FlightRecord& record);

/// The record that to_json() wrote. Throws base::Error kInvalidArgument saying what is wrong with
/// the text.
FlightRecord parse_flight_record(std::string_view json);

/// Reads a file that a rank wrote. Throws base::Error kFile naming the file and what is wrong.
FlightRecord read_flight_record(const std::filesystem::path& file);

}  // namespace fullshard::comm
