#include "comm/trace/group_trace.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "comm/shared/report.h"

namespace fullshard::comm::trace {
namespace {

using shared::OperationKind;

bool moves_elements(OperationKind kind) {
  return kind != OperationKind::kBarrier && kind != OperationKind::kAllocate &&
         kind != OperationKind::kSubgroup;
}

Note note_of(const shared::OperationRecord& record) {
  Note note;
  note.dtype = record.dtype;
  note.op = record.op;
  note.has_elements = moves_elements(record.kind);
  note.reduces =
      record.kind == OperationKind::kAllReduce || record.kind == OperationKind::kReduceScatter;
  note.root = record.root;
  note.counts_hash = record.counts_hash;
  note.count = record.count;
  note.step = record.step;
  note.operation = shared::FixedText<32>(shared::name_of(record.kind));
  note.unit = shared::FixedText<64>(record.unit.view());
  return note;
}

}  // namespace

void Flight::finish() noexcept {
  ring_.end(ticket_, FlightState::kFinished, shared::now_ns());
  if (group_ != nullptr) group_->finished.store(sequence_, std::memory_order_relaxed);
}

void Flight::fail() noexcept { ring_.end(ticket_, FlightState::kFailed, shared::now_ns()); }

BoardTrace::BoardTrace(std::shared_ptr<Recorder> recorder, std::shared_ptr<BoardEntry> board)
    : recorder_(std::move(recorder)), board_(std::move(board)) {}

Note BoardTrace::note(FlightKind kind, std::size_t counter, std::uint64_t value,
                      std::string_view operation, const OpTag& tag) const {
  Note note;
  note.kind = kind;
  note.group = board_->group->id;
  note.board = board_->id;
  note.counter = static_cast<std::uint32_t>(counter);
  note.sequence = value;
  note.step = tag.step;
  note.began_ns = shared::now_ns();
  note.operation = shared::FixedText<32>(operation);
  note.unit = shared::FixedText<64>(tag.unit);
  return note;
}

void BoardTrace::post(std::size_t counter, std::uint64_t value, std::string_view operation,
                      const OpTag& tag) noexcept {
  const Ring::Ticket ticket = recorder_->ring().begin(
      note(FlightKind::kPost, counter, value, operation, tag), FlightState::kFinished);
  board_->last_ticket.store(ticket, std::memory_order_relaxed);
  board_->posted[counter].store(value, std::memory_order_relaxed);
}

Flight BoardTrace::wait(std::size_t counter, std::uint64_t value, std::string_view operation,
                        const OpTag& tag) noexcept {
  const Ring::Ticket ticket =
      recorder_->ring().begin(note(FlightKind::kWait, counter, value, operation, tag));
  board_->last_ticket.store(ticket, std::memory_order_relaxed);
  return {recorder_->ring(), ticket, nullptr, 0};
}

std::shared_ptr<GroupTrace> GroupTrace::of_world(int rank, int world_size,
                                                 const CommOptions& options) {
  std::vector<int> ranks(static_cast<std::size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_shared<GroupTrace>(std::make_shared<Recorder>(rank, world_size, options),
                                      "world", std::move(ranks));
}

GroupTrace::GroupTrace(std::shared_ptr<Recorder> recorder, std::string name, std::vector<int> ranks)
    : recorder_(std::move(recorder)), group_(std::make_shared<GroupEntry>()) {
  group_->name = std::move(name);
  group_->ranks = std::move(ranks);
  recorder_->add(group_);
}

std::shared_ptr<GroupTrace> GroupTrace::self() const {
  return std::make_shared<GroupTrace>(recorder_, "self", std::vector<int>{recorder_->rank()});
}

std::shared_ptr<GroupTrace> GroupTrace::subgroup(std::uint64_t sequence,
                                                 std::vector<int> ranks) const {
  return std::make_shared<GroupTrace>(recorder_, fmt::format("{}.{}", group_->name, sequence),
                                      std::move(ranks));
}

std::unique_ptr<BoardTrace> GroupTrace::board(std::uint64_t sequence, std::string_view purpose,
                                              std::size_t counters) const {
  auto board = std::make_shared<BoardEntry>(group_, sequence, purpose, counters);
  recorder_->add(board);
  return std::make_unique<BoardTrace>(recorder_, std::move(board));
}

Flight GroupTrace::begin(std::uint64_t sequence, const shared::OperationRecord& record) noexcept {
  Note note = note_of(record);
  note.group = group_->id;
  note.sequence = sequence;
  note.began_ns = shared::now_ns();
  const Ring::Ticket ticket = recorder_->ring().begin(note);
  group_->last_ticket.store(ticket, std::memory_order_relaxed);
  group_->begun.store(sequence, std::memory_order_relaxed);
  return {recorder_->ring(), ticket, group_.get(), sequence};
}

}  // namespace fullshard::comm::trace
