#include "fullshard/bench/step_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "fullshard/base/error.h"

namespace fullshard::bench {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepShape, layers, dim, heads, vocab, seq, batch)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepSpec, shape, sharded, ranks, threads, strategy, units, atom,
                                   recompute, steps, memory_gate)

namespace {

constexpr int kMostRanks = 1024;

const std::vector<std::pair<std::string, StepShape>>& shapes() {
  static const std::vector<std::pair<std::string, StepShape>> kShapes = {
      {"a", {.layers = 12, .dim = 768, .heads = 12, .vocab = 50304, .seq = 256, .batch = 2}},
      {"b", {.layers = 12, .dim = 768, .heads = 12, .vocab = 50304, .seq = 128, .batch = 1}},
      {"c", {.layers = 6, .dim = 384, .heads = 6, .vocab = 256, .seq = 256, .batch = 4}}};
  return kShapes;
}

[[noreturn]] void reject(const std::string& message) {
  throw base::Error(base::ErrorCode::kUsage, message);
}

void require(const char* flag, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return;
  reject(fmt::format("--{}: found {}; expected an integer from {} to {}", flag, value, low, high));
}

void require_one_of(const char* flag, const std::string& value,
                    const std::vector<std::string>& known) {
  if (std::ranges::find(known, value) != known.end()) return;
  reject(
      fmt::format("--{}: found \"{}\"; expected one of {}", flag, value, fmt::join(known, ", ")));
}

}  // namespace

StepShape named_shape(std::string_view name) {
  for (const auto& [known, shape] : shapes()) {
    if (known == name) return shape;
  }
  reject(fmt::format("--shape: found \"{}\"; expected one of {}", name,
                     fmt::join(shape_names(), ", ")));
}

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const auto& [name, shape] : shapes()) names.push_back(name);
  return names;
}

std::vector<std::string> strategy_names() {
  return {"FULL_SHARD", "SHARD_GRAD_OP", "SHARD_OPTIMIZER_ONLY", "NO_SHARD"};
}

std::vector<std::string> units_names() { return {"automatic", "blocks", "whole"}; }

std::vector<std::string> atom_names() { return {"element", "row", "parameter", "unit"}; }

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
  constexpr std::int64_t kLarge = 1 << 24;
  require("layers", spec.shape.layers, 1, kLarge);
  require("dim", spec.shape.dim, 1, kLarge);
  require("heads", spec.shape.heads, 1, kLarge);
  require("vocab", spec.shape.vocab, 1, kLarge);
  require("seq", spec.shape.seq, 1, kLarge);
  require("batch", spec.shape.batch, 1, kLarge);
  require("ranks", spec.ranks, 1, kMostRanks);
  require("threads-per-rank", spec.threads, 1, kMostRanks);
  require("steps", spec.steps, 2, kLarge);
  require("recompute", spec.recompute, 0, spec.shape.layers);
  if (spec.shape.dim % spec.shape.heads != 0) {
    reject(fmt::format("--heads: found {}; expected a divisor of --dim {}", spec.shape.heads,
                       spec.shape.dim));
  }
  require_one_of("strategy", spec.strategy, strategy_names());
  require_one_of("atoms", spec.atom, atom_names());
  if (least_unit(spec.units) > 0) return;
  const std::vector<std::string> words = units_names();
  if (std::ranges::find(words, spec.units) != words.end()) return;
  reject(fmt::format("--units: found \"{}\"; expected {} or a number of parameters, 1 or more",
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
