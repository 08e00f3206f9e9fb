#pragma once

#include <vector>

#include "comm/shared/operation.h"

namespace fullshard::comm::shared {

/// Where the ranks of a group are.
struct Whereabouts {
  std::vector<int> host_of;  ///< by rank, a number of its host
  /// Whether data goes inside the hosts first, on which the order of sums depends.
  bool in_layers = false;
};

/// What a group whose data moves by other means, on devices, asks of a group of its ranks' hosts:
/// who takes part, and with what. Groups of shared memory and of messages are greeters.
class Greeter {
 public:
  virtual ~Greeter() = default;

  /// Collective: the beginning of an operation. Returns when all ranks have come with the same
  /// record. Throws as Group::barrier does, and kMismatch.
  virtual void greet(const OperationRecord& record) = 0;

  /// Throws the group's failure if it has one or a rank has died. `record` is the operation that is
  /// going on. Never blocks; any thread may call, also during greet().
  virtual void look(const OperationRecord& record) = 0;

  /// This rank's number in the world, by which errors name it.
  virtual int world_rank() const = 0;

  virtual Whereabouts whereabouts() const = 0;
};

}  // namespace fullshard::comm::shared
