#include "comm/trace/ring.h"

#include <cstring>

namespace fullshard::comm::trace {
namespace {

constexpr std::uint64_t outcome_of(Ring::Ticket ticket, FlightState state) {
  return 4 * ticket + static_cast<std::uint64_t>(state);
}

}  // namespace

Ring::Ring() : slots_(std::make_unique<std::array<Slot, kCapacity>>()) {}

Ring::Ticket Ring::begin(const Note& note, FlightState state) noexcept {
  const Ticket ticket = last_.fetch_add(1, std::memory_order_acq_rel) + 1;
  Slot& slot = (*slots_)[ticket % kCapacity];
  std::uint64_t version = slot.version.load(std::memory_order_relaxed);
  const bool mine =
      version % 2 == 0 && version < 2 * ticket &&
      slot.version.compare_exchange_strong(version, 2 * ticket - 1, std::memory_order_acq_rel);
  if (!mine) return 0;
  std::array<std::uint64_t, kWords> copy{};
  std::memcpy(copy.data(), &note, sizeof(note));
  slot.outcome.store(outcome_of(ticket, state), std::memory_order_release);
  slot.ended_ns.store(note.began_ns, std::memory_order_release);
  for (std::size_t i = 0; i < kWords; ++i) {
    slot.words[i].store(copy[i], std::memory_order_release);
  }
  slot.version.store(2 * ticket, std::memory_order_release);
  return ticket;
}

// An entry that takes the slot at this very moment may get this time of ending, until it ends.
void Ring::end(Ticket ticket, FlightState state, std::int64_t ended_ns) noexcept {
  if (ticket == 0) return;
  Slot& slot = (*slots_)[ticket % kCapacity];
  std::uint64_t started = outcome_of(ticket, FlightState::kStarted);
  if (slot.outcome.load(std::memory_order_relaxed) != started) return;
  slot.ended_ns.store(ended_ns, std::memory_order_release);
  slot.outcome.compare_exchange_strong(started, outcome_of(ticket, state),
                                       std::memory_order_acq_rel);
}

bool Ring::read(Ticket ticket, Entry& entry) const {
  const Slot& slot = (*slots_)[ticket % kCapacity];
  if (slot.version.load(std::memory_order_acquire) != 2 * ticket) return false;
  std::array<std::uint64_t, kWords> copy;
  for (std::size_t i = 0; i < kWords; ++i) copy[i] = slot.words[i].load(std::memory_order_acquire);
  const std::uint64_t outcome = slot.outcome.load(std::memory_order_acquire);
  entry.ended_ns = slot.ended_ns.load(std::memory_order_acquire);
  if (slot.version.load(std::memory_order_relaxed) != 2 * ticket) return false;
  entry.state = static_cast<FlightState>(outcome % 4);
  std::memcpy(static_cast<void*>(&entry.note), copy.data(), sizeof(entry.note));
  return true;
}

std::vector<Ring::Entry> Ring::read() const {
  const Ticket last = recorded();
  std::vector<Entry> entries;
  entries.reserve(kCapacity);
  for (Ticket ticket = last > kCapacity ? last - kCapacity + 1 : 1; ticket <= last; ++ticket) {
    if (Entry entry; read(ticket, entry)) entries.push_back(entry);
  }
  return entries;
}

}  // namespace fullshard::comm::trace
