#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fullshard/comm/mesh.h"
#include "shard/flat_unit.h"

namespace fullshard::shard {

struct UnitMemoryOptions {
  bool from_rank0 = true;  ///< start from rank 0's values; off, each rank gives its own range
  bool dynamic = false;    ///< FullyShardOptions::dynamic
  int reshard_after_forward = 0;         ///< FullyShardOptions::reshard_after_forward
  std::int64_t gather_bucket_bytes = 0;  ///< FullyShardOptions::gather_bucket_bytes
};

/// The memory of all units on one rank: its own slices, and units as a whole while they are needed.
class UnitMemory {
 public:
  /// Collective. Sets `held_memory` of every unit and fills it from the parameters as they were
  /// found; with masters and without `from_rank0`, Masters does so. `units` must outlive the
  /// object.
  static std::unique_ptr<UnitMemory> make(const comm::Mesh& mesh, std::vector<FlatUnit>& units,
                                          const UnitMemoryOptions& options);

  virtual ~UnitMemory() = default;

  /// Begins to gather units, in one collective where that saves any; gather() ends it.
  virtual void start(std::span<const int>, std::int64_t /*version*/) {}

  /// The whole unit with the values of `version`, which UpdateGate says may be read. The same
  /// address until release() when called again.
  virtual std::byte* gather(std::size_t unit, std::int64_t version) = 0;

  /// The unit is not used as a whole any more; waits for a gather that was started.
  virtual void release(std::size_t unit) = 0;

  /// Whether a unit lies in one place for all ranks that it is cut between.
  virtual bool shares_units() const = 0;

  /// Units are about to be cut otherwise, after so many gathers of each.
  virtual void count_gathers(std::span<const std::int64_t> /*by_unit*/) {}

  /// Units have been cut otherwise: sets `held_memory`. Where ranks do not share units, `held` is
  /// what this rank holds now of each that is cut, in the dtype of gathers.
  virtual void move(const std::vector<at::Tensor>& held) = 0;

  /// A step has ended: no backward is to come that would use what forwards left.
  virtual void end_step() {}

  /// Whether gathering takes time, which may be hidden behind computation.
  virtual bool moves_bytes() const = 0;

  /// Of units that are kept in smaller groups between forward and backward, now.
  virtual std::int64_t resharded_bytes() const { return 0; }

  /// Sent to ranks on other hosts by a group of its own.
  virtual std::int64_t bytes_between_hosts() const { return 0; }

  /// Does what other ranks may be waiting for that use units which this rank does not.
  virtual void take_part(std::int64_t version) = 0;

  /// Whether units are to stay gathered until the next update, because ranks may use them in any
  /// order.
  virtual bool keeps_units() const = 0;

  /// Of all units that are here because of that, now.
  virtual std::int64_t kept_bytes() const { return 0; }

  /// Received for a unit that was made resident `gathers` times, or would have been by copying.
  virtual std::int64_t gathered_bytes(std::size_t unit, std::int64_t gathers) const = 0;

  /// Seconds spent waiting for other ranks.
  virtual double waited_seconds() const = 0;
};

}  // namespace fullshard::shard
