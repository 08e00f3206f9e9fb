#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fullshard/comm/group.h"

namespace fullshard::comm::shared {

/// Names one hand-over of memory; no two of a job are equal.
using Ticket = std::uint64_t;

/// The seam between the protocol and a backend: how a rank comes by memory that other ranks see,
/// and how it learns that another rank is gone. One object a rank; ranks are numbered as in the
/// world. Any thread of the rank may call.
class Fabric {
 public:
  virtual ~Fabric() = default;

  /// New zeroed memory that can be offered to other ranks. `purpose` names it in errors.
  virtual std::shared_ptr<SharedSegment> create(std::size_t bytes, std::string_view purpose) = 0;

  /// Makes the segment available to `receivers` and returns at once. The ticket reaches them by
  /// other means, after this call.
  virtual Ticket offer(const std::shared_ptr<SharedSegment>& segment,
                       std::span<const int> receivers) = 0;

  /// The segment offered to this rank under `ticket`; the offer has been made before.
  virtual std::shared_ptr<SharedSegment> take(Ticket ticket, std::size_t bytes,
                                              std::string_view purpose) = 0;

  /// How the rank is known to have died ("its process 1234 has ended"), or nothing while it lives.
  virtual std::optional<std::string> death_of(int rank) = 0;

  /// Whether ranks are processes of their own, which can be stopped one by one.
  virtual bool has_processes() const = 0;

  /// A rank of this host, of any group, whose process is known to be stopped; -1 when there is
  /// none.
  virtual int stopped_rank() = 0;
};

}  // namespace fullshard::comm::shared
