#include "fullshard/bench/step_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "bench/refuse.h"
#include "fullshard/base/error.h"

namespace fullshard::bench {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepShape, model, layers, dim, heads, vocab, seq, image, patch,
                                   classes, batch)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepSpec, shape, sharded, ranks, threads, strategy, units, atom,
                                   recompute, steps, memory_gate)

namespace {

constexpr int kMostRanks = 1024;

}  // namespace

std::vector<std::string> strategy_names() {
  return {"FULL_SHARD", "SHARD_GRAD_OP", "SHARD_OPTIMIZER_ONLY", "NO_SHARD"};
}

std::vector<std::string> units_names() { return {"automatic", "blocks", "whole"}; }

std::vector<std::string> atom_names() { return {"element", "row", "parameter", "unit", "heads"}; }

std::int64_t least_unit(std::string_view units) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(units.data(), units.data() + units.size(), number);
  return error == std::errc{} && end == units.data() + units.size() ? number : 0;
}

int process_count(const StepSpec& spec) { return spec.sharded ? spec.ranks : 1; }

int threads_per_process(const StepSpec& spec) {
  return spec.sharded ? spec.threads : spec.ranks * spec.threads;
}

void validate(const StepSpec& spec) {
  constexpr int kMostSteps = 1 << 24;
  validate(spec.shape);
  require_between("ranks", spec.ranks, 1, kMostRanks);
  require_between("threads-per-rank", spec.threads, 1, kMostRanks);
  require_between("steps", spec.steps, 2, kMostSteps);
  require_between("recompute", spec.recompute, 0, spec.shape.layers);
  if (spec.recompute > 0 && spec.shape.model != "gpt") {
    refuse(fmt::format("--recompute: found {}; expected 0 for a {}", spec.recompute,
                       spec.shape.model));
  }
  require_one_of("strategy", spec.strategy, strategy_names());
  require_one_of("atoms", spec.atom, atom_names());
  if (spec.atom == "heads" && spec.shape.model == "resnet") {
    refuse("--atoms: a resnet has no heads");
  }
  if (least_unit(spec.units) > 0) return;
  const std::vector<std::string> words = units_names();
  if (std::ranges::find(words, spec.units) != words.end()) return;
  refuse(fmt::format("--units: found \"{}\"; expected {} or a number of parameters, 1 or more",
                     spec.units, fmt::join(words, ", ")));
}

std::string to_json(const StepSpec& spec) { return nlohmann::json(spec).dump(); }

StepSpec parse_step_spec(std::string_view json) {
  try {
    return nlohmann::json::parse(json).get<StepSpec>();
  } catch (const nlohmann::json::exception& error) {
    throw base::Error(base::ErrorCode::kConfiguration,
                      fmt::format("cannot read what to measure from '{}': {}", json, error.what()));
  }
}

}  // namespace fullshard::bench
