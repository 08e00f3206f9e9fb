#include "planner/traffic.h"

namespace fullshard::planner {
namespace {

constexpr int kMessages = 2;           // a greeting, and what it is about
constexpr int kAllReduceMessages = 3;  // parts, and their sums

class Costs {
 public:
  Costs(const Job& job, const Candidate& candidate, const Unit& unit,
        const layout::UnitLayout& layout)
      : machines_(job.machines), strategy_(candidate.strategy), bytes_(layout.flat_bytes()) {
    ranks_ = machines_.ranks_per_host;
    shard_bytes_ =
        layout.flat_size() * static_cast<std::int64_t>(base::size_of(shard_dtype(job.precision)));
    copied_ = copied_gradient_bytes(unit);
    costs_.bytes = bytes_;
    costs_.is_gathered = strategy_ != Strategy::kNoShard;
  }

  UnitCosts between_hosts() {
    const bool replicated = strategy_ == Strategy::kNoShard;
    costs_.adding = memory((replicated ? 4 : 2) * ranks_ * bytes_);
    if (replicated) {
      costs_.sent_by_reduce = 2 * sent(bytes_);
      costs_.reduce = kAllReduceMessages * machines_.network_latency +
                      network(costs_.sent_by_reduce) + memory((3 * ranks_ + 1) * bytes_);
      return costs_;
    }
    costs_.sent_by_gather = sent(bytes_);
    costs_.gather = kMessages * machines_.network_latency + network(costs_.sent_by_gather) +
                    memory(2 * ranks_ * bytes_);
    costs_.sent_by_reduce = sent(bytes_);
    costs_.reduce = kMessages * machines_.network_latency + network(costs_.sent_by_reduce) +
                    memory((ranks_ + 1) * bytes_);
    return costs_;
  }

  UnitCosts inside_a_host() {
    if (machines_.world() == 1) return costs_;
    const std::int64_t everybody = strategy_ == Strategy::kNoShard ? ranks_ : 1;
    costs_.adding = memory(everybody * (ranks_ * bytes_ + shard_bytes_) + 2 * ranks_ * copied_);
    if (is_hybrid(strategy_)) add_replicas();
    return costs_;
  }

 private:
  void add_replicas() {
    const bool divided = strategy_ == Strategy::kHybridDivided;
    costs_.sent_by_reduce = (divided ? 1 : 2) * sent(bytes_);
    costs_.reduce = (divided ? kMessages : kAllReduceMessages) * machines_.network_latency +
                    network(costs_.sent_by_reduce);
  }

  std::int64_t sent(std::int64_t bytes) const { return sent_between_hosts(machines_, bytes); }
  double network(std::int64_t bytes) const {
    return static_cast<double>(bytes) / machines_.network_bandwidth;
  }
  double memory(std::int64_t bytes) const {
    return static_cast<double>(bytes) / machines_.host_bandwidth;
  }

  const Machines& machines_;
  Strategy strategy_;
  std::int64_t ranks_ = 1;
  std::int64_t bytes_;
  std::int64_t shard_bytes_ = 0;
  std::int64_t copied_ = 0;
  UnitCosts costs_;
};

}  // namespace

bool is_hybrid(Strategy strategy) {
  return strategy == Strategy::kHybridShard || strategy == Strategy::kHybridDivided;
}

bool is_private(const Job& job, Strategy strategy) {
  return job.machines.hosts > 1 && !is_hybrid(strategy);
}

UnitCosts costs_of(const Job& job, const Candidate& candidate, const Unit& unit,
                   const layout::UnitLayout& layout) {
  Costs costs(job, candidate, unit, layout);
  return is_private(job, candidate.strategy) ? costs.between_hosts() : costs.inside_a_host();
}

std::int64_t sent_between_hosts(const Machines& machines, std::int64_t bytes) {
  return bytes / machines.hosts * (machines.hosts - 1);
}

double update_exchange_seconds(const Machines& machines, std::int64_t bytes, std::int64_t units) {
  return static_cast<double>(units) * kMessages * machines.network_latency +
         static_cast<double>(sent_between_hosts(machines, bytes)) / machines.network_bandwidth;
}

}  // namespace fullshard::planner
