#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "fullshard/base/error.h"
#include "fullshard/planner/assessment.h"
#include "fullshard/schedule/simulate.h"
#include "planner/memory.h"
#include "planner/timeline.h"
#include "planner/traffic.h"
#include "planner/units.h"

namespace fullshard::planner {
namespace {

schedule::ScheduleOptions schedule_options(const Candidate& candidate, std::size_t units) {
  schedule::ScheduleOptions options;
  options.forward_prefetch = options.backward_prefetch = candidate.prefetch;
  if (candidate.strategy == Strategy::kShardGradOp) options.keep_for_backward.assign(units, true);
  // Gathered once after each update, and there for the whole step.
  if (candidate.strategy == Strategy::kShardOptimizerOnly)
    options.keep_gathered.assign(units, true);
  return options;
}

std::vector<AtomRule> rules_of(const Job& job, const Candidate& candidate) {
  if (candidate.cuts == Cuts::kElements) return {};
  return heads_for(job, candidate).rules;
}

// Bytes of memory that all ranks of a host read and write in an update: AdamW reads parameter,
// gradient and two moments and writes all but the gradient; clipping reads gradients once more;
// what ranks compute with is written where it is not what they update.
double update_seconds(const Job& job, const Shares& shares) {
  const auto shard = static_cast<std::int64_t>(base::size_of(shard_dtype(job.precision)));
  const auto compute = static_cast<std::int64_t>(base::size_of(compute_dtype(job.precision)));
  const std::int64_t bytes =
      shares.host.updated * ((job.clips ? 8 : 7) * shard + (shard == compute ? 0 : compute));
  return static_cast<double>(bytes) / job.machines.host_bandwidth;
}

class Assessor {
 public:
  Assessor(const Job& job, const Candidate& candidate)
      : job_(job),
        candidate_(candidate),
        set_(cut_into_units(stages_of(job.model, compute_dtype(job.precision)), candidate.units,
                            rules_of(job, candidate), candidate.recompute)),
        layouts_(lay_out(set_, shard_ranks(job.machines, candidate.strategy))) {
    for (std::size_t u = 0; u < layouts_.size(); ++u) {
      costs_.push_back(costs_of(job, candidate, set_.units[u], layouts_[u]));
      unit_bytes_.push_back(layouts_[u].flat_bytes());
    }
    schedule_ = schedule::make_schedule(set_.trace(), unit_bytes_,
                                        schedule_options(candidate, layouts_.size()));
  }

  Assessment run() {
    const Shares shares = shares_of(layouts_, job_, candidate_.strategy);
    const Timeline timeline = play();
    Assessment result{.candidate = candidate_, .units = static_cast<int>(layouts_.size())};
    result.largest_unit_bytes = *std::ranges::max_element(unit_bytes_);
    result.largest_share = shares.largest_share;
    count_gathers(result);
    result.memory = memory_of(job_, candidate_, set_, shares, timeline);
    result.step = step_of(timeline, shares);
    const auto needed =
        static_cast<double>(result.memory.host.total()) * memory_margin(job_, candidate_);
    result.fits = needed <= static_cast<double>(job_.machines.memory_per_host);
    return result;
  }

 private:
  Timeline play() const {
    const double tokens = static_cast<double>(job_.tokens_per_rank());
    return TimelinePlayer(
               set_, costs_,
               {.seconds_per_flop = tokens / job_.machines.flops,
                .unit_overhead = job_.machines.world() > 1 ? job_.machines.unit_overhead : 0})
        .play(schedule_);
  }

  void count_gathers(Assessment& result) const {
    std::int64_t sent = 0;
    for (const UnitCosts& costs : costs_) sent += job_.micro_batches * costs.sent_by_reduce;
    if (candidate_.strategy != Strategy::kNoShard) {
      const schedule::SimulationResult simulated = schedule::simulate(schedule_, unit_bytes_);
      result.peak_unsharded_bytes = simulated.peak_bytes;
      result.gathers = simulated.gathers;
      for (std::size_t u = 0; u < costs_.size(); ++u) {
        sent += rounds_of_gathers() * simulated.unit_gathers[u] * costs_[u].sent_by_gather;
      }
    }
    if (candidate_.strategy == Strategy::kHybridDivided) {
      sent += sent_between_hosts(job_.machines, all_bytes());
    }
    result.bytes_between_hosts = sent;
  }

  // Forwards of a step that gather; what stays until the next update is gathered in the first.
  int rounds_of_gathers() const {
    return candidate_.strategy == Strategy::kShardOptimizerOnly ? 1 : job_.micro_batches;
  }

  std::int64_t all_bytes() const {
    return std::accumulate(unit_bytes_.begin(), unit_bytes_.end(), std::int64_t{0});
  }

  StepEstimate step_of(const Timeline& timeline, const Shares& shares) const {
    const double rounds = job_.micro_batches;
    StepEstimate step{.compute = rounds * timeline.compute,
                      .recompute = rounds * timeline.recompute,
                      .gather_waits = rounds_of_gathers() * timeline.gather_waits,
                      .adding = rounds * timeline.adding,
                      .reduction_waits = rounds * timeline.reduction_waits,
                      .optimizer = update_seconds(job_, shares)};
    if (candidate_.strategy == Strategy::kHybridDivided) {
      step.update_waits = update_exchange_seconds(job_.machines, all_bytes(),
                                                  static_cast<std::int64_t>(layouts_.size()));
    }
    return step;
  }

  const Job& job_;
  const Candidate& candidate_;
  UnitSet set_;
  std::vector<layout::UnitLayout> layouts_;
  std::vector<UnitCosts> costs_;
  std::vector<std::int64_t> unit_bytes_;
  schedule::Schedule schedule_;
};

}  // namespace

std::int64_t Job::tokens_per_step() const {
  return tokens_per_rank() * micro_batches * machines.world();
}

void validate(const Job& job) {
  validate(job.model);
  validate(job.machines);
  static constexpr std::int64_t kMost = std::int64_t{1} << 24;
  const auto require = [](const char* flag, std::int64_t value) {
    if (value >= 1 && value <= kMost) return;
    throw base::Error(
        base::ErrorCode::kUsage,
        fmt::format("--{}: found {}; expected an integer from 1 to {}", flag, value, kMost));
  };
  require("batch", job.batch);
  require("micro-batches", job.micro_batches);
}

std::int64_t MemoryParts::total() const {
  return parameters + optimizer + gradients + activations + gathered + unreduced + tied + building +
         libraries;
}

double Assessment::tokens_per_second(const Job& job) const {
  return static_cast<double>(job.tokens_per_step()) / step.total();
}

double memory_margin(const Job& job, const Candidate& candidate) {
  if (candidate.strategy == Strategy::kNoShard || is_private(job, candidate.strategy)) return 1.3;
  return candidate.recompute ? 1.2 : 1.08;
}

Assessment assess(const Job& job, const Candidate& candidate) {
  return Assessor(job, candidate).run();
}

}  // namespace fullshard::planner
