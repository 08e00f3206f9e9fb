#include "planner/reasons.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "fullshard/base/text.h"

namespace fullshard::planner {
namespace {

double seconds(const Assessment& way) { return way.step.total(); }
std::int64_t bytes(const Assessment& way) { return way.memory.host.total(); }

std::string name_of(const Candidate& candidate) {
  return fmt::format("{} with units of {}{}{}", to_string(candidate.strategy),
                     to_string(candidate.units),
                     candidate.cuts == Cuts::kHeads ? ", heads kept whole" : "",
                     candidate.recompute ? ", blocks computed again" : "");
}

std::string how_many(const Plan& plan) {
  const auto fitting = std::ranges::count_if(plan.ways, &Assessment::fits);
  return fmt::format(
      "{} of {} ways to train fit into {} a host; of those that are within 1 % of the quickest and "
      "need least memory, within 10 %, this is the simplest.",
      fitting, plan.ways.size(), base::format_bytes(plan.job.machines.memory_per_host));
}

std::string what_limits(const StepEstimate& step) {
  const std::array<std::pair<const char*, double>, 4> parts = {
      {{"computing", step.compute},
       {"the network", step.gather_waits + step.reduction_waits + step.update_waits},
       {"adding up gradients, that is, memory bandwidth", step.adding},
       {"the optimizer, that is, memory bandwidth", step.optimizer}}};
  const auto largest = std::ranges::max_element(parts, {}, &std::pair<const char*, double>::second);
  return fmt::format("The step is limited by {}: {:.0f} % of {:.3g} s.", largest->first,
                     100 * largest->second / step.total(), step.total());
}

// Of those that are quicker and do not fit, the smallest.
void add_too_large(const Plan& plan, std::vector<std::string>& reasons) {
  const auto found = std::ranges::find_if(plan.ways, [&](const Assessment& way) {
    return !way.fits && seconds(way) * kSameTime < seconds(plan.best());
  });
  if (found == plan.ways.end()) return;
  reasons.push_back(fmt::format("Quicker, but too large: {}, {:.3g} s, needs {} a host.",
                                name_of(found->candidate), seconds(*found),
                                base::format_bytes(bytes(*found))));
}

// The next best of another strategy.
void add_other_strategy(const Plan& plan, std::vector<std::string>& reasons) {
  const Assessment& best = plan.best();
  const auto other = std::ranges::find_if(plan.of_strategies, [&](const Assessment& way) {
    return way.fits && way.candidate.strategy != best.candidate.strategy;
  });
  if (other == plan.of_strategies.end()) return;
  reasons.push_back(fmt::format(
      "The next strategy is {}: {:+.1f} % time, {:+.1f} % memory a host.",
      name_of(other->candidate), 100 * (seconds(*other) / seconds(best) - 1),
      100 * (static_cast<double>(bytes(*other)) / static_cast<double>(bytes(best)) - 1)));
}

void add_recomputation(const Plan& plan, std::vector<std::string>& reasons) {
  const Assessment& best = plan.best();
  if (!best.candidate.recompute) return;
  reasons.push_back(
      fmt::format("Blocks are computed again in backward, {:.0f} % of the step, because what is as "
                  "quick without does not fit.",
                  100 * best.step.recompute / seconds(best)));
}

}  // namespace

std::vector<std::string> reasons_of(const Plan& plan) {
  std::vector<std::string> reasons = {how_many(plan), what_limits(plan.best().step)};
  add_too_large(plan, reasons);
  add_recomputation(plan, reasons);
  add_other_strategy(plan, reasons);
  return reasons;
}

}  // namespace fullshard::planner
