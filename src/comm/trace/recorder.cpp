#include "comm/trace/recorder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "fullshard/base/deadline.h"
#include "fullshard/base/error.h"

namespace fullshard::comm::trace {
namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

std::int64_t unix_us() {
  return duration_cast<microseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Turns times of base::Clock into microseconds since 1970.
class Calendar {
 public:
  Calendar()
      : offset_us_(unix_us() -
                   duration_cast<microseconds>(base::Clock::now().time_since_epoch()).count()) {}
  std::int64_t at(std::int64_t clock_ns) const { return offset_us_ + clock_ns / 1000; }

 private:
  std::int64_t offset_us_;
};

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

FlightEntry entry_of(const Ring::Entry& from, const Calendar& calendar) {
  const Note& note = from.note;
  FlightEntry entry;
  entry.kind = note.kind;
  entry.state = from.state;
  entry.operation = note.operation.view();
  entry.unit = note.unit.view();
  entry.step = note.step;
  entry.began_us = calendar.at(note.began_ns);
  if (from.state != FlightState::kStarted) entry.ended_us = calendar.at(from.ended_ns);
  if (note.kind != FlightKind::kCollective) {
    entry.counter = note.counter;
    entry.value = note.sequence;
    return entry;
  }
  entry.sequence = note.sequence;
  if (note.has_elements) entry.dtype = base::to_string(note.dtype);
  if (note.reduces) entry.reduction = shared::name_of(note.op);
  entry.root = note.root;
  entry.count = note.count;
  entry.bytes = note.count * static_cast<std::int64_t>(base::size_of(note.dtype));
  entry.counts_hash = note.counts_hash;
  return entry;
}

// What nobody holds any more, and nothing in the ring speaks of.
template <typename Entry>
void forget_old(std::vector<std::shared_ptr<Entry>>& entries, Ring::Ticket recorded) {
  std::erase_if(entries, [&](const std::shared_ptr<Entry>& entry) {
    return entry.use_count() == 1 &&
           entry->last_ticket.load(std::memory_order_relaxed) + Ring::kCapacity < recorded;
  });
}

void write_file(const std::filesystem::path& file, const std::string& text) {
  const std::filesystem::path unfinished = file.string() + ".tmp";
  std::ofstream out(unfinished, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(unfinished, file, error);
  if (out && !error) return;
  throw base::Error(base::ErrorCode::kFile,
                    fmt::format("cannot write the flight record {}: {}", file.string(),
                                error ? error.message() : std::strerror(errno)));
}

}  // namespace

Recorder::Recorder(int rank, int world_size, const CommOptions& options)
    : rank_(rank), world_size_(world_size), folder_(options.trace_folder) {}

void Recorder::add(const std::shared_ptr<GroupEntry>& group) {
  const std::lock_guard lock(mutex_);
  forget_old(groups_, ring_.recorded());
  group->id = ++last_id_;
  groups_.push_back(group);
}

void Recorder::add(const std::shared_ptr<BoardEntry>& board) {
  const std::lock_guard lock(mutex_);
  forget_old(boards_, ring_.recorded());
  board->id = ++last_id_;
  boards_.push_back(board);
}

FlightRecord Recorder::record(std::string_view reason) const {
  FlightRecord record;
  record.rank = rank_;
  record.world_size = world_size_;
  record.host = host_name();
  record.pid = getpid();
  record.written_us = unix_us();
  record.reason = reason;
  record.operations = ring_.recorded();
  std::map<std::uint32_t, std::size_t> group_index;
  std::map<std::uint32_t, const BoardEntry*> board_of;
  const std::lock_guard lock(mutex_);
  for (const auto& group : groups_) {
    group_index[group->id] = record.groups.size();
    record.groups.push_back({group->name, group->ranks, group->begun, group->finished});
  }
  for (const auto& board : boards_) {
    board_of[board->id] = board.get();
    if (board.use_count() == 1) continue;
    record.boards.push_back({group_index[board->group->id],
                             board->made_by,
                             board->purpose,
                             {board->posted.begin(), board->posted.end()}});
  }
  const Calendar calendar;
  for (const Ring::Entry& from : ring_.read()) {
    FlightEntry entry = entry_of(from, calendar);
    entry.group = group_index[from.note.group];
    if (const auto board = board_of.find(from.note.board); board != board_of.end()) {
      entry.board = board->second->purpose;
      entry.made_by = board->second->made_by;
    }
    record.entries.push_back(std::move(entry));
  }
  return record;
}

std::string Recorder::write(const std::string& folder, std::string_view reason) const {
  const std::lock_guard lock(file_mutex_);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw base::Error(
        base::ErrorCode::kFile,
        fmt::format("cannot make the folder {} for flight records: {}", folder, error.message()));
  }
  const auto file = std::filesystem::path(folder) / fmt::format("flight_rank{}.json", rank_);
  write_file(file, to_json(record(reason)));
  return file.string();
}

std::string Recorder::write_failure(std::string_view reason) noexcept {
  if (folder_.empty() || world_size_ == 1) return "";
  try {
    return write_failure_once(reason);
  } catch (const std::exception&) {
    return "";
  }
}

std::string Recorder::write_failure_once(std::string_view reason) {
  {
    const std::lock_guard lock(file_mutex_);
    if (std::exchange(failure_written_, true)) return failure_text_;
  }
  std::string text;
  try {
    text = "; flight record: " + write(folder_, reason);
  } catch (const base::Error& error) {
    text = fmt::format("; {}", error.what());
  }
  const std::lock_guard lock(file_mutex_);
  failure_text_ = text;
  return text;
}

}  // namespace fullshard::comm::trace
