#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/shm/unique_fd.h"
#include "fullshard/base/deadline.h"
#include "fullshard/base/error.h"

namespace fullshard::comm::shm {

enum class PacketKind : std::uint32_t {
  kHello,    ///< a rank to rank 0: who I am; carries its mailbox and, where there is one, its pidfd
  kPeer,     ///< rank 0 to a rank: the same about another rank
  kControl,  ///< rank 0 to a rank: the world's control block
  kFailed,   ///< rank 0 to a rank: joining has failed, and why
  kSegment,  ///< between ranks: memory handed over
};

/// One message between processes of this host, with the descriptors that travel with it.
struct Packet {
  PacketKind kind = PacketKind::kHello;
  std::int32_t rank = -1;  ///< whom it is about
  std::int32_t pid = 0;
  base::ErrorCode code = base::ErrorCode::kInternal;  ///< of a kFailed packet
  std::uint64_t ticket = 0;                           ///< of a kSegment packet
  std::uint64_t bytes =
      0;  ///< of the memory that a descriptor stands for; ranks of the world in a kHello
  std::array<char, 1024> text{};  ///< the token of a kHello, the reason of a kFailed packet

  void set_text(std::string_view value) { value.copy(text.data(), text.size() - 1); }
};

struct Received {
  Packet packet;
  std::vector<UniqueFd> fds;
};

/// A pair of connected sockets that keep packets whole. Throws kSystem.
std::pair<UniqueFd, UniqueFd> make_socket_pair();

/// Sends without waiting. False when the receiver's queue is full or nobody receives any more.
bool try_send(int socket, const Packet& packet, std::span<const int> fds);

/// Sends, waiting for room until `deadline`. False when nobody receives any more; throws kTimeout.
bool send(int socket, const Packet& packet, std::span<const int> fds, base::Deadline deadline);

/// The next packet if one is there. Throws kSystem when descriptors were lost on the way, which
/// means that this process may open no more of them.
std::optional<Received> try_receive(int socket);

/// Waits until the socket has a packet or its other end is closed. False when `deadline` passed
/// first.
bool wait_readable(int socket, base::Deadline deadline);

/// Whether the other end is closed by all who held it.
bool is_hung_up(int socket);

/// A base::Error of kSystem: `what` and the text of errno.
base::Error system_error(std::string_view what);

}  // namespace fullshard::comm::shm
