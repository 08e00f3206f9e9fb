#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/trace/ring.h"
#include "fullshard/comm/flight_record.h"
#include "fullshard/comm/types.h"

namespace fullshard::comm::trace {

/// A group, as its rank's recorder knows it.
struct GroupEntry {
  std::uint32_t id = 0;
  std::string name;
  std::vector<int> ranks;  // as numbered in the world
  std::atomic<std::uint64_t> begun = 0;
  std::atomic<std::uint64_t> finished = 0;
  std::atomic<Ring::Ticket> last_ticket = 0;
};

/// A signal board, likewise.
struct BoardEntry {
  BoardEntry(std::shared_ptr<const GroupEntry> of, std::uint64_t made_by_operation,
             std::string_view what_for, std::size_t counters)
      : group(std::move(of)), made_by(made_by_operation), purpose(what_for), posted(counters) {}

  std::uint32_t id = 0;
  std::shared_ptr<const GroupEntry> group;
  std::uint64_t made_by;
  std::string purpose;
  std::vector<std::atomic<std::uint64_t>> posted;
  std::atomic<Ring::Ticket> last_ticket = 0;
};

/// The flight record of one rank: the last operations of all its groups, and where it is written
/// when something goes wrong. Made with the world, shared by its groups. Any thread may call.
class Recorder {
 public:
  /// `options.trace_folder` is where failures are written.
  Recorder(int rank, int world_size, const CommOptions& options);

  int rank() const { return rank_; }

  /// The folder of the options; may be empty.
  const std::string& folder() const { return folder_; }

  Ring& ring() { return ring_; }

  /// What is recorded now. `reason` is why somebody wants to know.
  FlightRecord record(std::string_view reason) const;

  /// Writes the record to flight_rank<rank>.json in `folder`, which is made if need be; replaces
  /// the file of an earlier call. Returns the file's name. Throws base::Error kFile.
  std::string write(const std::string& folder, std::string_view reason) const;

  /// Writes the record into the options' folder because a group has failed; the first call does,
  /// later ones have the same answer. Returns the end of a sentence that says where it is; empty
  /// when there is no folder, or nobody to compare with.
  std::string write_failure(std::string_view reason) noexcept;

  /// Gives a group or a board its number. It is known while somebody else holds it, and as long as
  /// the ring may speak of it.
  void add(const std::shared_ptr<GroupEntry>& group);
  void add(const std::shared_ptr<BoardEntry>& board);

 private:
  std::string write_failure_once(std::string_view reason);

  int rank_;
  int world_size_;
  std::string folder_;
  Ring ring_;

  mutable std::mutex mutex_;  // guards what follows; recording an operation does not take it
  std::uint32_t last_id_ = 0;
  std::vector<std::shared_ptr<GroupEntry>> groups_;
  std::vector<std::shared_ptr<BoardEntry>> boards_;

  mutable std::mutex file_mutex_;  // guards the file and what follows; taken before mutex_
  bool failure_written_ = false;
  std::string failure_text_;
};

}  // namespace fullshard::comm::trace
