#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fullshard::shard {

/// What one unit did on this rank since it was sharded.
struct UnitCounters {
  std::string name;                  ///< dotted name; "(root)" for the root
  std::int64_t bytes = 0;            ///< of the whole unit, padding included
  std::int64_t all_gathers = 0;      ///< times it was made resident
  std::int64_t reduce_scatters = 0;  ///< times its gradients were reduced
  /// Time this rank stood still for its gathers and reductions; of units that were gathered in one
  /// go the first has it. Waiting until all ranks may update is no unit's.
  double exposed_seconds = 0;
};

/// What the engine did on this rank since the model was sharded; always on. Bytes are per rank.
/// On one host a gather copies nothing; its bytes are those a copying backend would have received.
/// The bytes of an optimizer's state are known to the optimizer: optim/state_bytes.h.
struct Counters {
  std::int64_t all_gathers = 0;             ///< of units
  std::int64_t all_gather_collectives = 0;  ///< the same, units gathered in one go counted once
  std::int64_t all_gather_bytes = 0;        ///< received from other ranks
  /// Of parts of units that replicas update for each other (shard_optimizer_over_replicas), and
  /// the bytes received in them.
  std::int64_t update_gathers = 0;
  std::int64_t update_gather_bytes = 0;
  std::int64_t reduce_scatters = 0;             ///< of units
  std::int64_t reduce_scatter_collectives = 0;  ///< the same, units of one bucket counted once
  /// What other ranks gave for this rank's part of the gradients, whoever added it up.
  std::int64_t reduce_scatter_bytes = 0;
  /// Sent from this rank to ranks on other hosts by the groups of the mesh, for whatever they were
  /// used, as comm::Group::bytes_between_hosts counts.
  std::int64_t bytes_between_hosts = 0;
  std::int64_t live_unsharded_bytes = 0;  ///< of units resident now
  std::int64_t peak_unsharded_bytes = 0;  ///< since the start or the last reset_peak
  std::int64_t resharded_bytes = 0;  ///< of pieces kept for backward (reshard_after_forward) now
  /// This rank's own share; with mixed precision in both dtypes.
  std::int64_t parameter_shard_bytes = 0;
  std::int64_t gradient_bytes = 0;                 ///< of reduced gradient shards held now
  std::int64_t unreduced_gradient_bytes = 0;       ///< full-size gradients held now
  std::int64_t peak_unreduced_gradient_bytes = 0;  ///< since the start or the last reset_peak
  std::int64_t copied_gradient_bytes = 0;  ///< that autograd did not make where others can read
  std::int64_t staging_bytes = 0;          ///< private full copies made by unsharded scopes, now
  double exposed_comm_seconds = 0;  ///< time this rank waited for others or reduced gradients
  /// The part of it that was work: adding up gradients where they are, in the memory of one host.
  double reduction_seconds = 0;
  /// Time that operators on shards took, such as an optimizer's; waiting not counted, nor what
  /// every rank updates for itself (NO_SHARD).
  double update_seconds = 0;
  /// Times that this rank, being ahead, reduced another one's part of a unit. Not in what is
  /// counted of units and bytes, which is the same however ranks help each other.
  std::int64_t reductions_for_others = 0;
  std::int64_t shard_moves = 0;  ///< times that ShardedModule::move_shards has cut units otherwise
  std::vector<UnitCounters> units;
};

}  // namespace fullshard::shard
