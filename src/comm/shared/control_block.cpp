#include "comm/shared/control_block.h"

#include <new>

#include "fullshard/base/check.h"

namespace fullshard::comm::shared {
namespace {

constexpr std::uint64_t kMagic = 0x31306b636f6c6246U;  // changes with the layout
constexpr std::size_t kPage = 4096;

constexpr std::size_t round_up(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

std::size_t slots_offset() { return round_up(sizeof(ControlHeader), alignof(Slot)); }

std::size_t staging_offset(int ranks) {
  return round_up(slots_offset() + static_cast<std::size_t>(ranks) * sizeof(Slot), kPage);
}

}  // namespace

std::size_t ControlBlock::bytes_for(int ranks, std::size_t staging_bytes) {
  return staging_offset(ranks) + 2 * static_cast<std::size_t>(ranks) * staging_bytes;
}

void ControlBlock::format(std::byte* memory, int ranks, std::size_t staging_bytes,
                          base::Duration heartbeat_timeout) {
  auto* header = ::new (memory) ControlHeader{};
  header->ranks = ranks;
  header->staging_bytes = staging_bytes;
  header->heartbeat_ns = std::chrono::nanoseconds(heartbeat_timeout).count();
  for (int rank = 0; rank < ranks; ++rank) {
    ::new (memory + slots_offset() + static_cast<std::size_t>(rank) * sizeof(Slot)) Slot{};
  }
  header->magic = kMagic;
}

ControlBlock::ControlBlock(std::byte* memory)
    : header_(reinterpret_cast<ControlHeader*>(memory)),
      slots_(reinterpret_cast<Slot*>(memory + slots_offset())),
      staging_(memory + staging_offset(header_->ranks)) {
  FULLSHARD_CHECK_EQ(header_->magic, kMagic);
}

std::byte* ControlBlock::staging(int rank, unsigned half) const {
  return staging_ + (2 * static_cast<std::size_t>(rank) + half) * header_->staging_bytes;
}

}  // namespace fullshard::comm::shared
