#include "planner/remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace fullshard::planner {
namespace {

constexpr int kMostHosts = 1024;  // to propose

class Search {
 public:
  Search(const Job& job, const Choices& choices) : job_(job), choices_(choices) {}

  std::vector<Remedy> run() {
    if (choices_.recompute == false) try_recomputation();
    if (job_.batch > 1) try_micro_batches();
    if (job_.precision == Precision::kFloat32) try_bf16();
    try_fewer_ranks();
    try_more_hosts();
    std::stable_partition(found_.begin(), found_.end(),
                          [](const Remedy& remedy) { return remedy.fits; });
    return std::move(found_);
  }

 private:
  Remedy assess_change(const Job& job, const Choices& choices, std::string change) const {
    const Assessment least = smallest(job, choices);
    return {std::move(change), least.memory.host.total(), least.fits};
  }

  void try_recomputation() {
    Choices choices = choices_;
    choices.recompute.reset();
    found_.push_back(assess_change(job_, choices, "computing blocks again in backward"));
  }

  void try_micro_batches() {
    Job job = job_;
    job.micro_batches *= static_cast<int>(job.batch);
    job.batch = 1;
    found_.push_back(assess_change(
        job, choices_,
        fmt::format("1 sequence a rank in place of {}, in {} times as many micro-batches",
                    job_.batch, job_.batch)));
  }

  void try_bf16() {
    Job job = job_;
    job.precision = Precision::kBFloat16;
    found_.push_back(assess_change(job, choices_, "bf16 with fp32 masters"));
  }

  // Halves or doubles until it fits.
  void try_fewer_ranks() {
    Job job = job_;
    if (job.machines.ranks_per_host == 1) return;
    Remedy remedy;
    do {
      job.machines.ranks_per_host /= 2;
      job.machines.threads_per_rank *= 2;
      job.machines.flops *= 2;
      remedy =
          assess_change(job, choices_,
                        fmt::format("{} ranks a host, each with {} threads",
                                    job.machines.ranks_per_host, job.machines.threads_per_rank));
    } while (!remedy.fits && job.machines.ranks_per_host > 1);
    found_.push_back(std::move(remedy));
  }

  void try_more_hosts() {
    Job job = job_;
    Remedy remedy;
    do {
      job.machines.hosts *= 2;
      Choices sharded = choices_;
      sharded.units.resize(std::min<std::size_t>(sharded.units.size(), 1));
      remedy = assess_change(job, sharded, fmt::format("{} hosts", job.machines.hosts));
    } while (!remedy.fits && job.machines.world() < kMostHosts);
    found_.push_back(std::move(remedy));
  }

  const Job& job_;
  const Choices& choices_;
  std::vector<Remedy> found_;
};

}  // namespace

// Cuts between heads and depths of prefetch never make it smaller.
Assessment smallest(const Job& job, const Choices& choices) {
  Choices fewer = choices;
  if (fewer.cuts.empty()) fewer.cuts = {Cuts::kElements};
  std::vector<Assessment> ways;
  for (const Candidate& candidate :
       candidates(static_cast<int>(job.model.layers), job.machines.hosts, fewer)) {
    ways.push_back(assess(job, candidate));
  }
  return *std::ranges::min_element(ways, {},
                                   [](const Assessment& way) { return way.memory.host.total(); });
}

std::vector<Remedy> remedies_for(const Job& job, const Choices& choices) {
  return Search(job, choices).run();
}

}  // namespace fullshard::planner
