#pragma once

#include <cstdint>
#include <string>

#include "fullshard/planner/candidate.h"
#include "fullshard/planner/heads.h"
#include "fullshard/planner/machines.h"
#include "fullshard/planner/model.h"

namespace fullshard::planner {

/// What is to be trained, and where.
struct Job {
  ModelShape model;
  Machines machines;
  Precision precision = Precision::kFloat32;
  std::int64_t batch = 1;  ///< sequences of a rank in one forward
  int micro_batches = 1;   ///< forwards of a rank in one step
  bool clips = true;       ///< whether a step clips the gradient's norm

  std::int64_t tokens_per_rank() const { return batch * model.seq; }  ///< in one forward
  std::int64_t tokens_per_step() const;                               ///< of all ranks
};

/// Throws base::Error(kUsage) naming the flag that cannot be used.
void validate(const Job& job);

/// Bytes by what they hold.
struct MemoryParts {
  std::int64_t parameters = 0;   ///< as operators see them, and masters where these differ
  std::int64_t optimizer = 0;    ///< AdamW's two moments
  std::int64_t gradients = 0;    ///< reduced ones
  std::int64_t activations = 0;  ///< what forward leaves for backward, and the loss
  std::int64_t gathered = 0;     ///< buffers of units from other hosts
  std::int64_t unreduced = 0;    ///< whole gradients that wait for their reduction
  std::int64_t tied = 0;         ///< a tied table's first gradient, and the sum
  std::int64_t building = 0;     ///< whole models, before they are sharded
  std::int64_t libraries = 0;

  std::int64_t total() const;
  bool operator==(const MemoryParts&) const = default;
};

/// The worst moment of a run.
struct MemoryEstimate {
  /// "ranks have built the model", "backward begins", "a block is recomputed" or "backward ends".
  std::string moment;
  MemoryParts host;  ///< all ranks of the host that has most, pages that they share once
  MemoryParts rank;  ///< the rank that has most, pages that ranks share divided among them
};

/// Seconds of one optimizer step, on every rank.
struct StepEstimate {
  double compute = 0;
  double recompute = 0;        ///< of compute: blocks again, in backward
  double gather_waits = 0;     ///< for parameters from other hosts, and units' overhead
  double adding = 0;           ///< gradients, inside the host, copies included
  double reduction_waits = 0;  ///< for gradients of other hosts
  double optimizer = 0;
  double update_waits = 0;  ///< for parts that replicas have updated

  double exposed() const { return gather_waits + adding + reduction_waits + update_waits; }
  double total() const { return compute + exposed() + optimizer; }
};

/// One way to train, assessed.
struct Assessment {
  Candidate candidate;
  int units = 0;
  std::int64_t largest_unit_bytes = 0;
  std::int64_t peak_unsharded_bytes = 0;  ///< of a rank, by schedule::simulate
  std::int64_t gathers = 0;               ///< units gathered in one forward and backward
  std::int64_t bytes_between_hosts = 0;   ///< that a host sends in a step
  double largest_share = 1;               ///< of parameters: most of any rank, in means
  MemoryEstimate memory;
  StepEstimate step;
  bool fits = false;  ///< with memory_margin()

  double tokens_per_second(const Job& job) const;
};

/// What memory has to be there for an estimate, as a multiple of it: by how much measured peaks
/// were above it (docs/planning.md). 1.08 where ranks share memory and step memory is used again
/// and again; 1.2 with recomputation; 1.3 with libtorch's own allocator, that is, with NO_SHARD and
/// between hosts.
double memory_margin(const Job& job, const Candidate& candidate);

Assessment assess(const Job& job, const Candidate& candidate);

}  // namespace fullshard::planner
