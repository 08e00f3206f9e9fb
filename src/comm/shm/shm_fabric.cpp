#include "comm/shm/shm_fabric.h"

#include <algorithm>
#include <array>
#include <utility>

#include "fullshard/base/check.h"

namespace fullshard::comm::shm {
namespace {

constexpr unsigned kRankShift = 40;  // a ticket is the offering rank and a count of its offers

}  // namespace

ShmFabric::ShmFabric(int rank, std::vector<Peer> peers, UniqueFd inbox, base::Duration timeout)
    : rank_(rank), peers_(std::move(peers)), inbox_(std::move(inbox)), timeout_(timeout) {}

std::shared_ptr<SharedSegment> ShmFabric::create(std::size_t bytes, std::string_view purpose) {
  return MemfdSegment::create(bytes, purpose);
}

shared::Ticket ShmFabric::offer(const std::shared_ptr<SharedSegment>& segment,
                                std::span<const int> receivers) {
  const auto memory = std::dynamic_pointer_cast<MemfdSegment>(segment);
  FULLSHARD_CHECK(memory != nullptr);
  Packet packet;
  packet.kind = PacketKind::kSegment;
  packet.rank = rank_;
  packet.bytes = segment->size();
  {
    const std::lock_guard lock(mutex_);
    packet.ticket = (static_cast<std::uint64_t>(rank_) << kRankShift) | ++offers_;
  }
  const std::array<int, 1> fds = {memory->fd()};
  const auto deadline = base::Deadline::after(timeout_);
  for (const int receiver : receivers) {
    // A receiver that is gone is noticed by the meeting that follows.
    send(peers_[static_cast<std::size_t>(receiver)].mailbox.get(), packet, fds, deadline);
  }
  return packet.ticket;
}

std::shared_ptr<SharedSegment> ShmFabric::take(shared::Ticket ticket, std::size_t bytes,
                                               std::string_view purpose) {
  const std::lock_guard lock(mutex_);
  while (!arrived_.contains(ticket)) {
    auto received = try_receive(inbox_.get());
    FULLSHARD_CHECK(received.has_value());
    FULLSHARD_CHECK(received->packet.kind == PacketKind::kSegment && received->fds.size() == 1);
    arrived_[received->packet.ticket] = std::move(received->fds[0]);
  }
  UniqueFd fd = std::move(arrived_.extract(ticket).mapped());
  return MemfdSegment::attach(std::move(fd), bytes, purpose);
}

std::optional<std::string> ShmFabric::death_of(int rank) {
  return peers_[static_cast<std::size_t>(rank)].death();
}

int ShmFabric::stopped_rank() {
  const auto stopped = std::find_if(peers_.begin(), peers_.end(),
                                    [](const Peer& peer) { return peer.is_stopped(); });
  return stopped == peers_.end() ? -1 : static_cast<int>(stopped - peers_.begin());
}

}  // namespace fullshard::comm::shm
