#include "fullshard/planner/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "fullshard/base/error.h"
#include "fullshard/base/text.h"
#include "planner/memory.h"
#include "planner/reasons.h"
#include "planner/remedies.h"

namespace fullshard::planner {
namespace {

std::vector<Assessment> assess_all(const Job& job, const Choices& choices) {
  std::vector<Assessment> ways;
  for (const Candidate& candidate :
       candidates(static_cast<int>(job.model.layers), job.machines.hosts, choices)) {
    ways.push_back(assess(job, candidate));
  }
  if (ways.empty()) {
    throw base::Error(base::ErrorCode::kUsage,
                      "--strategy: HYBRID_SHARD needs several hosts; give --hosts, or another one");
  }
  return ways;
}

double seconds(const Assessment& way) { return way.step.total(); }
std::int64_t bytes(const Assessment& way) { return way.memory.host.total(); }

// Where the best of `ways` is, which are given simplest first: as make_plan() says; where none
// fits, the smallest.
std::vector<Assessment>::const_iterator choose(const std::vector<Assessment>& ways) {
  double quickest = std::numeric_limits<double>::infinity();
  auto least = static_cast<double>(std::numeric_limits<std::int64_t>::max());
  for (const Assessment& way : ways) {
    if (way.fits) quickest = std::min(quickest, seconds(way));
  }
  const auto is_quick = [&](const Assessment& way) {
    return way.fits && seconds(way) <= kSameTime * quickest;
  };
  for (const Assessment& way : ways) {
    if (is_quick(way)) least = std::min(least, static_cast<double>(bytes(way)));
  }
  const auto chosen = std::ranges::find_if(ways, [&](const Assessment& way) {
    return is_quick(way) && static_cast<double>(bytes(way)) <= kSameMemory * least;
  });
  return chosen != ways.end() ? chosen : std::ranges::min_element(ways, {}, bytes);
}

void put_in_order(std::vector<Assessment>& ways) {
  const Candidate best = choose(ways)->candidate;
  std::ranges::stable_sort(ways, [&](const Assessment& a, const Assessment& b) {
    if ((a.candidate == best) != (b.candidate == best)) return a.candidate == best;
    if (a.fits != b.fits) return a.fits;
    return a.fits ? seconds(a) < seconds(b) : bytes(a) < bytes(b);
  });
}

// `ways` are given simplest first.
std::vector<Assessment> best_of_strategies(const std::vector<Assessment>& ways) {
  std::map<std::pair<bool, Strategy>, std::vector<Assessment>> groups;
  for (const Assessment& way : ways) {
    groups[{way.candidate.recompute, way.candidate.strategy}].push_back(way);
  }
  std::vector<Assessment> found;
  found.reserve(groups.size());
  for (const auto& [kind, group] : groups) found.push_back(*choose(group));
  put_in_order(found);
  return found;
}

std::string parts_of(const MemoryParts& parts) {
  const std::pair<const char*, std::int64_t> named[] = {{"parameters", parts.parameters},
                                                        {"optimizer state", parts.optimizer},
                                                        {"gradients", parts.gradients},
                                                        {"activations", parts.activations},
                                                        {"gathered units", parts.gathered},
                                                        {"gradients to reduce", parts.unreduced},
                                                        {"gradients of the tied table", parts.tied},
                                                        {"models before sharding", parts.building},
                                                        {"libraries", parts.libraries}};
  std::string text;
  for (const auto& [name, size] : named) {
    if (size == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, base::format_bytes(size));
  }
  return text;
}

}  // namespace

std::vector<Assessment> Plan::granularities() const {
  std::vector<Assessment> found;
  for (const Candidate& candidate :
       candidates(static_cast<int>(job.model.layers), job.machines.hosts, {})) {
    Candidate same = best().candidate;
    same.units = candidate.units;
    same.prefetch = candidate.prefetch;
    if (same != candidate) continue;
    const Assessment way = assess(job, candidate);
    if (found.empty() || found.back().candidate.units != candidate.units) {
      found.push_back(way);
    } else if (seconds(way) < seconds(found.back())) {
      found.back() = way;
    }
  }
  return found;
}

Plan make_plan(const Job& job, const Choices& choices) {
  validate(job);
  Plan plan{.job = job, .ways = assess_all(job, choices)};
  plan.of_strategies = best_of_strategies(plan.ways);
  put_in_order(plan.ways);
  Candidate divided = plan.best().candidate;
  divided.cuts = Cuts::kHeads;
  plan.heads = heads_for(job, divided);
  plan.with_heads = assess(job, divided);
  if (plan.fits()) {
    plan.reasons = reasons_of(plan);
  } else {
    plan.remedies = remedies_for(job, choices);
  }
  return plan;
}

std::string why_nothing_fits(const Plan& plan) {
  const Assessment& least = plan.best();
  std::string text = fmt::format(
      "nothing fits into {} a host: the least is {} with units of {}{}, {} a host when {} ({}), "
      "and "
      "{:.0f} % to spare",
      base::format_bytes(plan.job.machines.memory_per_host), to_string(least.candidate.strategy),
      to_string(least.candidate.units), least.candidate.recompute ? ", blocks computed again" : "",
      base::format_bytes(bytes(least)), least.memory.moment, parts_of(least.memory.host),
      100 * (memory_margin(plan.job, least.candidate) - 1));
  for (const Remedy& remedy : plan.remedies) {
    text += fmt::format("\n  {}: {} a host{}", remedy.change, base::format_bytes(remedy.host_bytes),
                        remedy.fits ? ", which fits" : "");
  }
  return text;
}

}  // namespace fullshard::planner
