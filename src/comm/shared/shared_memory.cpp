// The collective calls of SharedGroup that make new shared memory.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "comm/shared/collective_call.h"
#include "comm/shared/shared_group.h"
#include "comm/shared/shared_signals.h"
#include "fullshard/base/error.h"

namespace fullshard::comm::shared {
namespace {

using base::Error;

// One rank's hold on a segment.
class SegmentHold final : public SharedSegment {
 public:
  explicit SegmentHold(std::shared_ptr<SharedSegment> segment) : segment_(std::move(segment)) {}
  std::byte* data() override { return segment_->data(); }
  std::size_t size() const override { return segment_->size(); }
  void discard(std::size_t offset, std::size_t bytes) override { segment_->discard(offset, bytes); }

 private:
  std::shared_ptr<SharedSegment> segment_;
};

}  // namespace

std::size_t staging_for(int ranks, const CommOptions& options) {
  check_options(options);
  return std::max(options.staging, std::size_t{64} * static_cast<std::size_t>(ranks));
}

std::shared_ptr<SharedSegment> make_control_block(Fabric& fabric, int ranks,
                                                  const CommOptions& options) {
  const std::size_t staging = staging_for(ranks, options);
  auto memory = fabric.create(ControlBlock::bytes_for(ranks, staging), "a group's control block");
  ControlBlock::format(memory->data(), ranks, staging, options.heartbeat_timeout);
  return memory;
}

// Rank 0 makes the memory, the others take it over; the last meeting shows that everyone has it.
std::shared_ptr<SharedSegment> SharedGroup::hand_out(CollectiveCall& call, std::size_t bytes,
                                                     std::string_view purpose) {
  Fabric& fabric = *session_->fabric();
  if (size() == 1) return fabric.create(bytes, purpose);
  call.meet();
  std::shared_ptr<SharedSegment> segment;
  try {
    if (rank() == 0) {
      segment = fabric.create(bytes, purpose);
      const Ticket ticket = fabric.offer(segment, std::span(session_->members()).subspan(1));
      std::memcpy(staging(0), &ticket, sizeof(ticket));
    }
    call.meet();
    if (rank() != 0) {
      Ticket ticket = 0;
      std::memcpy(&ticket, staging(0), sizeof(ticket));
      segment = fabric.take(ticket, bytes, purpose);
    }
  } catch (const Error& error) {
    session_->record_failure(error.code(), session_->world_rank(rank()), error.what());
    throw;
  }
  half_ ^= 1U;
  call.meet();
  return segment;
}

std::unique_ptr<SharedSegment> SharedGroup::allocate_shared(std::size_t bytes,
                                                            std::string_view purpose) {
  OperationRecord record(OperationKind::kAllocate, {std::string(purpose), -1});
  record.count = static_cast<std::int64_t>(bytes);
  CollectiveCall call(*session_, busy_, record);
  auto segment = hand_out(call, bytes, purpose);
  call.finish();
  return std::make_unique<SegmentHold>(std::move(segment));
}

std::unique_ptr<SignalBoard> SharedGroup::allocate_signals(std::size_t counters,
                                                           std::string_view purpose) {
  auto memory = allocate_shared(SharedSignals::bytes_for(size(), counters), purpose);
  const std::uint64_t made_by = session_->block().slot(rank()).entered.load();
  return std::make_unique<SharedSignals>(session_, std::move(memory), counters, purpose,
                                         session_->trace().board(made_by, purpose, counters));
}

std::shared_ptr<Group> SharedGroup::subgroup(std::span<const int> ranks) {
  check_members(ranks, size());
  const std::vector<std::int64_t> list(ranks.begin(), ranks.end());
  const int members = static_cast<int>(ranks.size());
  OperationRecord record(OperationKind::kSubgroup, {});
  record.set_counts(list);
  CollectiveCall call(*session_, busy_, record);
  const std::size_t staging_bytes = session_->block().staging_bytes();
  auto memory = hand_out(call, ControlBlock::bytes_for(members, staging_bytes), "a subgroup");
  if (rank() == ranks.front()) {
    ControlBlock::format(memory->data(), members, staging_bytes, options().heartbeat_timeout);
  }
  if (size() > 1) call.meet();
  call.finish();
  const auto position = std::find(ranks.begin(), ranks.end(), rank());
  if (position == ranks.end()) return nullptr;
  std::vector<int> world_ranks;
  for (const int member : ranks) world_ranks.push_back(session_->world_rank(member));
  auto session =
      std::make_shared<Session>(std::move(memory), static_cast<int>(position - ranks.begin()),
                                session_->trace().subgroup(call.number(), std::move(world_ranks)),
                                session_->fabric(), session_->options());
  return std::make_shared<SharedGroup>(std::move(session));
}

}  // namespace fullshard::comm::shared
