#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "fullshard/comm/mesh.h"
#include "shard/flat_unit.h"

namespace fullshard::shard {

struct UnitMemoryOptions {
  bool from_rank0 = true;  ///< start from rank 0's values; off, each rank gives its own range
  bool dynamic = false;    ///< FullyShardOptions::dynamic
};

/// The memory of all units on one rank: its own slices, and units as a whole while they are needed.
class UnitMemory {
 public:
  /// Collective. Sets `own_memory` of every unit and fills it from the parameters as they were
  /// found. `units` must outlive the object.
  static std::unique_ptr<UnitMemory> make(const comm::Mesh& mesh, std::vector<FlatUnit>& units,
                                          const UnitMemoryOptions& options);

  virtual ~UnitMemory() = default;

  /// The whole unit with the values of `version`, which UpdateGate says may be read. The same
  /// address until release() when called again.
  virtual std::byte* gather(std::size_t unit, std::int64_t version) = 0;

  /// The unit is not used as a whole any more.
  virtual void release(std::size_t unit) = 0;

  /// Does what other ranks may be waiting for that use units which this rank does not.
  virtual void take_part(std::int64_t version) = 0;

  /// Whether units are to stay gathered until the next update, because ranks may use them in any
  /// order.
  virtual bool keeps_units() const = 0;

  /// Received for a unit that was made resident `gathers` times, or would have been by copying.
  virtual std::int64_t gathered_bytes(std::size_t unit, std::int64_t gathers) const = 0;

  /// Seconds spent waiting for other ranks.
  virtual double waited_seconds() const = 0;
};

}  // namespace fullshard::shard
