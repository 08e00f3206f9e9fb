#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fullshard/comm/flight_record.h"

namespace fullshard::doctor {

/// Where one rank is in a group.
struct Place {
  enum class State {
    kNoRecord,  ///< there is no file of it
    kInside,    ///< in the operation
    kFailed,    ///< the operation ended with an error on it
    kFinished,  ///< the operation is the last it finished, and it has begun no other
    kNowhere,   ///< it has begun nothing in the group
  };
  int rank = 0;
  State state = State::kNoRecord;
  std::uint64_t sequence = 0;
  std::string call;     ///< empty when the record does not reach back to it
  double seconds = -1;  ///< for how long it is inside, or how long ago it ended
};

/// Ranks that made the same call.
struct Call {
  std::string call;
  std::vector<int> ranks;
};

/// One group of several ranks. Operations of a group have the same number on all ranks.
struct GroupReport {
  std::string name;
  std::vector<int> ranks;
  std::uint64_t last_common = 0;  ///< the last operation that all ranks with a record finished
  std::string last_common_call;
  std::vector<Place> places;  ///< one a rank

  /// The first operation that is not the same on all ranks; `calls` is empty when there is none.
  std::uint64_t different = 0;
  std::vector<Call> calls;

  /// Ranks with a record that have not begun the operation after `last_common`, when others have.
  std::vector<int> missing;
  std::vector<int> inside;  ///< ranks that have begun it and not finished
};

/// Ranks that wait for others at a signal board, through which the engine orders gathers and
/// reductions in shared memory.
struct WaitReport {
  std::string group;
  std::string board;
  std::string call;
  std::vector<int> waiting;
  std::vector<int> missing;    ///< have not signalled what they wait for
  std::vector<int> no_record;  ///< may or may not have
};

struct TraceReport {
  int world_size = 0;
  std::vector<comm::FlightRecord> records;  ///< by rank
  std::vector<int> no_record;               ///< ranks without a file
  std::vector<GroupReport> groups;
  std::vector<WaitReport> waits;
  std::vector<std::string> findings;  ///< what is wrong, in sentences, the likeliest cause first
  std::vector<std::string> remarks;   ///< what limits the findings
};

/// Reads the files that ranks wrote; a folder stands for its flight_rank*.json. Throws base::Error
/// kFile for a file that is no flight record; kInvalidArgument when two are of the same rank, or of
/// jobs of different sizes.
std::vector<comm::FlightRecord> read_records(std::span<const std::filesystem::path> files);

/// Lines up the records of a job, one a rank at most.
TraceReport analyse(std::vector<comm::FlightRecord> records);

/// For people: findings first, then the places of all ranks.
std::string to_text(const TraceReport& report);

std::string to_json(const TraceReport& report);

/// The call of an entry in words: "all_reduce (sum of 10 float32) of unit 'blocks.1' in step 7".
std::string describe(const comm::FlightEntry& entry);

}  // namespace fullshard::doctor
