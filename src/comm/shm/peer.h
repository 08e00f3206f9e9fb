#pragma once

#include <optional>
#include <string>

#include "comm/shm/packet.h"
#include "comm/shm/unique_fd.h"

namespace fullshard::comm::shm {

/// What a rank holds of another one. The mailbox is the end that others write to; the rank itself
/// keeps the reading end to itself, so its closing is the rank's end.
struct Peer {
  int pid = 0;
  UniqueFd mailbox;
  UniqueFd process;  ///< a pidfd, or none where the kernel has no such thing

  /// Makes a peer of the descriptors of a kHello or kPeer packet; throws kInternal when they are
  /// missing.
  static Peer from(Received received);

  /// The descriptors to send on, in the order that from() expects.
  std::vector<int> descriptors() const;

  /// How the rank is known to have ended, or nothing.
  std::optional<std::string> death() const;

  /// Whether its process is known to be stopped, by a signal or a debugger.
  bool is_stopped() const;
};

/// This process, seen as a peer, and the reading end of its mailbox.
struct Self {
  Peer peer;
  UniqueFd inbox;
};
Self make_self();

}  // namespace fullshard::comm::shm
