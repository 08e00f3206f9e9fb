#include "comm/shared/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "fullshard/base/deadline.h"
#include "fullshard/base/text.h"

namespace fullshard::comm::shared {
namespace {

std::string ago(std::int64_t at) {
  const double seconds = static_cast<double>(now_ns() - at) * 1e-9;
  return fmt::format("{:.1f} s", std::max(seconds, 0.0));
}

std::string last_operation(const Slot& slot) {
  const std::uint64_t entered = slot.entered.load(std::memory_order_acquire);
  const bool inside = slot.finished.load(std::memory_order_acquire) < entered;
  const std::string when = ago(slot.changed_at.load(std::memory_order_relaxed));
  const auto record = slot.operations[entered % 2].load();
  const std::string what =
      record ? describe_call(*record, entered) : "an operation that cannot be read";
  return inside ? fmt::format("has been in {} for {}", what, when)
                : fmt::format("last finished {}, {} ago", what, when);
}

std::string last_note(const Slot& slot) {
  const auto note = slot.note.load();
  if (!note) return "last used a signal board";
  return fmt::format("last {} {}{}, {} ago",
                     note->act == SignalNote::Act::kPosted ? "signalled" : "began to wait for",
                     note->operation.view(), describe_tag(note->unit.view(), note->step),
                     ago(slot.noted_at.load(std::memory_order_relaxed)));
}

}  // namespace

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(base::Clock::now().time_since_epoch())
      .count();
}

std::string describe_calls(std::span<const std::pair<int, OperationRecord>> calls) {
  std::vector<std::pair<OperationRecord, std::vector<int>>> kinds;
  for (const auto& [rank, record] : calls) {
    auto same = std::find_if(kinds.begin(), kinds.end(),
                             [&record = record](const auto& kind) { return kind.first == record; });
    if (same == kinds.end()) same = kinds.insert(kinds.end(), {record, {}});
    same->second.push_back(rank);
  }
  std::string text;
  for (const auto& [record, ranks] : kinds) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", base::name_ranks(ranks),
                        describe(record));
  }
  return text;
}

std::string last_act(const Slot& slot) {
  const auto presence = static_cast<Presence>(slot.presence.load(std::memory_order_acquire));
  if (presence == Presence::kNotYet) return "has not joined the group";
  const std::int64_t noted = slot.noted_at.load(std::memory_order_relaxed);
  const std::int64_t changed = slot.changed_at.load(std::memory_order_relaxed);
  std::string text = "has not called anything on the group yet";
  if (noted > changed) {
    text = last_note(slot);
  } else if (slot.entered.load(std::memory_order_acquire) > 0) {
    text = last_operation(slot);
  }
  return presence == Presence::kLeft ? text + " and has left the group" : text;
}

}  // namespace fullshard::comm::shared
