#include "planner/memory.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "planner/traffic.h"

namespace fullshard::planner {
namespace {

// Of units that wait for their reduction inside a host (docs/design/memory.md).
constexpr std::int64_t kWaitingUnits = 3;

std::int64_t unit_bytes(const Unit& unit) {
  std::int64_t bytes = 0;
  for (const layout::ParameterSpec& parameter : unit.parameters) {
    bytes += layout::numel(parameter.name, parameter.shape) *
             static_cast<std::int64_t>(base::size_of(parameter.dtype));
  }
  return bytes;
}

// Adds up who has how much.
class Adder {
 public:
  Adder(const Machines& machines, int ranks) : machines_(machines), by_rank_(index(ranks), 0) {}

  void add(const layout::UnitLayout& layout) {
    whole_ += layout.flat_size();
    for (std::size_t rank = 0; rank < by_rank_.size(); ++rank) {
      by_rank_[rank] += layout.slice(static_cast<int>(rank)).size();
    }
  }

  Shares shares() const {
    const std::int64_t most = *std::ranges::max_element(by_rank_);
    Shares shares{.rank = {most, most}, .host = {most_of_host(), 0}, .whole = whole_};
    shares.host.updated = shares.host.held;
    shares.largest_share = static_cast<double>(most) * static_cast<double>(by_rank_.size()) /
                           static_cast<double>(std::max<std::int64_t>(whole_, 1));
    return shares;
  }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  std::int64_t most_of_host() const {
    const std::size_t ranks = index(machines_.ranks_per_host);
    std::int64_t most = 0;
    for (std::size_t first = 0; first < by_rank_.size(); first += ranks) {
      std::int64_t sum = 0;
      const std::size_t end = std::min(first + ranks, by_rank_.size());
      for (std::size_t rank = first; rank < end; ++rank) sum += by_rank_[rank];
      most = std::max(most, sum);
    }
    return most;
  }

  const Machines& machines_;
  std::vector<std::int64_t> by_rank_;
  std::int64_t whole_ = 0;
};

// The moments of a run, for one rank or for those of a host.
class Moments {
 public:
  Moments(const Job& job, const Candidate& candidate, const UnitSet& set, const Shares& shares,
          const Timeline& timeline)
      : job_(job),
        candidate_(candidate),
        timeline_(timeline),
        whole_(shares.whole),
        compute_bytes_(size_of(compute_dtype(job.precision))),
        shard_bytes_(size_of(shard_dtype(job.precision))),
        activations_(activation_elements(job.model)),
        tied_(tied_elements(job.model) * compute_bytes_) {
    set_unreduced(set);
  }

  MemoryParts start(Elements own, std::int64_t ranks) const {
    MemoryParts parts = lasting(own, ranks);
    parts.optimizer = 0;
    parts.building = ranks * whole_ * shard_bytes_;
    return parts;
  }

  MemoryParts backward_begins(Elements own, std::int64_t ranks) const {
    MemoryParts parts = at_work(own, ranks);
    parts.activations = ranks * activations(kept_by_blocks() + activations_.last);
    return parts;
  }

  MemoryParts block_recomputed(Elements own, std::int64_t ranks) const {
    MemoryParts parts = at_work(own, ranks);
    if (!candidate_.recompute) return parts;
    parts.activations = ranks * activations(kept_by_blocks() + activations_.block);
    parts.tied = ranks * tied_;
    parts.unreduced = ranks * unreduced_;
    return parts;
  }

  MemoryParts backward_ends(Elements own, std::int64_t ranks) const {
    MemoryParts parts = at_work(own, ranks);
    parts.gradients = own.updated * shard_bytes_;
    if (keeps_pages()) parts.activations = backward_begins(own, ranks).activations;
    parts.tied = ranks * 2 * tied_;
    parts.unreduced = ranks * unreduced_;
    return parts;
  }

 private:
  static std::int64_t size_of(base::DType dtype) {
    return static_cast<std::int64_t>(base::size_of(dtype));
  }

  // Without shard::StepMemory pages of activations are not those of gradients, and stay.
  bool keeps_pages() const {
    return job_.machines.world() > 1 &&
           (candidate_.strategy == Strategy::kNoShard || is_private(job_, candidate_.strategy));
  }

  void set_unreduced(const UnitSet& set) {
    lasting_buffers_ = timeline_.gradient_buffers;
    if (is_private(job_, candidate_.strategy)) {
      // What autograd has made, until it is copied.
      unreduced_ = lasting_buffers_ + (tied_ > 0 ? 0 : largest_gradient(set));
      return;
    }
    // Between hosts travels what each rank holds of a unit.
    lasting_buffers_ /= job_.machines.ranks_per_host;
    unreduced_ = lasting_buffers_ + (job_.machines.world() > 1 ? waiting_units(set) : 0);
  }

  std::int64_t waiting_units(const UnitSet& set) const {
    if (set.units.size() == 1) return whole_ * compute_bytes_ - tied_;
    std::int64_t largest = 0;
    std::int64_t sum = 0;
    for (std::size_t unit = 1; unit < set.units.size(); ++unit) {
      const std::int64_t bytes = unit_bytes(set.units[unit]);
      largest = std::max(largest, bytes);
      sum += bytes;
    }
    return std::min(kWaitingUnits * largest, sum);
  }

  static std::int64_t largest_gradient(const UnitSet& set) {
    std::int64_t largest = 0;
    for (const Unit& unit : set.units) {
      for (const layout::ParameterSpec& parameter : unit.parameters) {
        largest = std::max(
            largest, layout::numel(parameter.name, parameter.shape) * size_of(parameter.dtype));
      }
    }
    return largest;
  }

  MemoryParts lasting(Elements own, std::int64_t ranks) const {
    const bool has_masters = compute_bytes_ != shard_bytes_;
    return {
        .parameters = own.held * compute_bytes_ + (has_masters ? own.updated * shard_bytes_ : 0),
        .optimizer = 2 * own.updated * shard_bytes_,
        .libraries = ranks * job_.machines.library_bytes};
  }

  MemoryParts at_work(Elements own, std::int64_t ranks) const {
    MemoryParts parts = lasting(own, ranks);
    parts.gathered = ranks * timeline_.gather_buffers;
    parts.unreduced = ranks * lasting_buffers_;
    if (job_.micro_batches > 1) parts.gradients = own.updated * shard_bytes_;
    return parts;
  }

  double kept_by_blocks() const {
    const double block = candidate_.recompute ? activations_.block_input : activations_.block;
    return block * static_cast<double>(job_.model.layers);
  }

  std::int64_t activations(double elements) const {
    return std::llround(elements * static_cast<double>(job_.tokens_per_rank() * compute_bytes_));
  }

  const Job& job_;
  const Candidate& candidate_;
  const Timeline& timeline_;
  std::int64_t whole_;
  std::int64_t compute_bytes_;
  std::int64_t shard_bytes_;
  ActivationElements activations_;
  std::int64_t tied_;
  std::int64_t unreduced_ = 0;        // of a rank, when backward ends
  std::int64_t lasting_buffers_ = 0;  // of it, what is kept for the next step
};

}  // namespace

int shard_ranks(const Machines& machines, Strategy strategy) {
  if (strategy == Strategy::kNoShard) return 1;
  return is_hybrid(strategy) ? machines.ranks_per_host : machines.world();
}

HeadProposal heads_for(const Job& job, const Candidate& candidate) {
  return propose_heads(job.model, shard_ranks(job.machines, candidate.strategy),
                       candidate.units.kind == UnitCut::Kind::kHalves);
}

Shares shares_of(const std::vector<layout::UnitLayout>& layouts, const Job& job,
                 Strategy strategy) {
  Adder adder(job.machines, shard_ranks(job.machines, strategy));
  for (const layout::UnitLayout& layout : layouts) adder.add(layout);
  Shares shares = adder.shares();
  if (strategy == Strategy::kNoShard) {
    shares.host.held *= job.machines.ranks_per_host;
    shares.host.updated *= job.machines.ranks_per_host;
  }
  if (strategy == Strategy::kHybridDivided) {
    const std::int64_t hosts = job.machines.hosts;
    shares.rank.updated = (shares.rank.updated + hosts - 1) / hosts;
    shares.host.updated = (shares.host.updated + hosts - 1) / hosts;
  }
  return shares;
}

MemoryEstimate memory_of(const Job& job, const Candidate& candidate, const UnitSet& set,
                         const Shares& shares, const Timeline& timeline) {
  const Moments moments(job, candidate, set, shares, timeline);
  struct Moment {
    const char* name;
    MemoryParts (Moments::*parts)(Elements, std::int64_t) const;
  };
  constexpr std::array<Moment, 4> kMoments = {
      {{"ranks have built the model", &Moments::start},
       {"backward begins", &Moments::backward_begins},
       {"a block is recomputed", &Moments::block_recomputed},
       {"backward ends", &Moments::backward_ends}}};
  MemoryEstimate worst;
  for (const Moment& moment : kMoments) {
    const MemoryParts host = (moments.*moment.parts)(shares.host, job.machines.ranks_per_host);
    if (host.total() <= worst.host.total()) continue;
    worst = {moment.name, host, (moments.*moment.parts)(shares.rank, 1)};
  }
  return worst;
}

}  // namespace fullshard::planner
