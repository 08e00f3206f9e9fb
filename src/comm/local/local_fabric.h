#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "comm/shared/fabric.h"

namespace fullshard::comm::local {

/// Fabric of ranks that are threads of one process: memory is handed over as a pointer, through a
/// table that all ranks share. One object serves all ranks of a world; tickets tell receivers
/// apart. A thread cannot die without its process; a rank that ends leaves its groups.
class LocalFabric final : public shared::Fabric {
 public:
  std::shared_ptr<SharedSegment> create(std::size_t bytes, std::string_view purpose) override;
  shared::Ticket offer(const std::shared_ptr<SharedSegment>& segment,
                       std::span<const int> receivers) override;
  std::shared_ptr<SharedSegment> take(shared::Ticket ticket, std::size_t bytes,
                                      std::string_view purpose) override;
  std::optional<std::string> death_of(int rank) override;
  bool has_processes() const override { return false; }
  int stopped_rank() override { return -1; }

 private:
  struct Offer {
    std::shared_ptr<SharedSegment> segment;
    std::size_t receivers_left = 0;
  };

  std::mutex mutex_;  // guards what follows; nothing else is locked under it
  std::map<shared::Ticket, Offer> offers_;
  shared::Ticket last_ticket_ = 0;
};

}  // namespace fullshard::comm::local
