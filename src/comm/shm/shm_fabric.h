#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/shared/fabric.h"
#include "comm/shm/memfd_segment.h"
#include "comm/shm/peer.h"

namespace fullshard::comm::shm {

/// Fabric of one rank among processes of a host: memory is a memfd whose descriptor goes into the
/// receivers' mailboxes; a rank's end shows on its pidfd and its mailbox.
class ShmFabric final : public shared::Fabric {
 public:
  /// `timeout` bounds the wait for room in a mailbox that is not being read.
  ShmFabric(int rank, std::vector<Peer> peers, UniqueFd inbox, base::Duration timeout);

  std::shared_ptr<SharedSegment> create(std::size_t bytes, std::string_view purpose) override;
  shared::Ticket offer(const std::shared_ptr<SharedSegment>& segment,
                       std::span<const int> receivers) override;
  std::shared_ptr<SharedSegment> take(shared::Ticket ticket, std::size_t bytes,
                                      std::string_view purpose) override;
  std::optional<std::string> death_of(int rank) override;
  bool has_processes() const override { return true; }
  int stopped_rank() override;

 private:
  int rank_;
  std::vector<Peer> peers_;
  UniqueFd inbox_;
  base::Duration timeout_;
  std::mutex
      mutex_;  // guards what follows, and reading from inbox_; nothing else is locked under it
  std::uint64_t offers_ = 0;
  std::map<shared::Ticket, UniqueFd> arrived_;  // read from the mailbox, not yet taken
};

}  // namespace fullshard::comm::shm
