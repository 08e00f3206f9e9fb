#include "fullshard/planner/candidate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <utility>

#include "fullshard/base/error.h"

namespace fullshard::planner {
namespace {

template <typename T>
using Names = std::vector<std::pair<std::string_view, T>>;

const Names<Strategy>& strategies() {
  static const Names<Strategy> kNames = {{"FULL_SHARD", Strategy::kFullShard},
                                         {"SHARD_GRAD_OP", Strategy::kShardGradOp},
                                         {"SHARD_OPTIMIZER_ONLY", Strategy::kShardOptimizerOnly},
                                         {"HYBRID_SHARD", Strategy::kHybridShard},
                                         {"HYBRID_SHARD_DIVIDED", Strategy::kHybridDivided},
                                         {"NO_SHARD", Strategy::kNoShard}};
  return kNames;
}

const Names<Cuts>& cuts() {
  static const Names<Cuts> kNames = {{"element", Cuts::kElements}, {"heads", Cuts::kHeads}};
  return kNames;
}

const Names<Precision>& precisions() {
  static const Names<Precision> kNames = {
      {"fp32", Precision::kFloat32}, {"bf16", Precision::kBFloat16}, {"fp64", Precision::kFloat64}};
  return kNames;
}

const Names<std::optional<bool>>& recomputations() {
  static const Names<std::optional<bool>> kNames = {
      {"auto", std::nullopt}, {"off", false}, {"on", true}};
  return kNames;
}

template <typename T>
std::string_view name_of(const Names<T>& names, T value) {
  return std::ranges::find(names, value, &std::pair<std::string_view, T>::second)->first;
}

template <typename T>
T named(const char* flag, const Names<T>& names, const std::string& text) {
  std::vector<std::string_view> known;
  for (const auto& [name, value] : names) {
    if (name == text) return value;
    known.push_back(name);
  }
  throw base::Error(base::ErrorCode::kUsage, fmt::format("--{}: found \"{}\"; expected one of {}",
                                                         flag, text, fmt::join(known, ", ")));
}

template <typename T>
bool allows(const std::vector<T>& chosen, const T& value) {
  return chosen.empty() || std::ranges::find(chosen, value) != chosen.end();
}

std::vector<Strategy> strategies_for(int hosts, const Choices& choices) {
  std::vector<Strategy> found;
  for (const auto& [name, strategy] : strategies()) {
    const bool needs_hosts =
        strategy == Strategy::kHybridShard || strategy == Strategy::kHybridDivided;
    if (needs_hosts && hosts == 1) continue;
    if (allows(choices.strategies, strategy)) found.push_back(strategy);
  }
  return found;
}

std::vector<UnitCut> units_for(int layers, const Choices& choices) {
  if (!choices.units.empty()) return choices.units;
  std::vector<UnitCut> found = {{}};
  for (int blocks = 2; blocks < layers; blocks *= 2) {
    found.push_back({UnitCut::Kind::kBlocks, blocks});
  }
  found.push_back({UnitCut::Kind::kWhole, 0});
  found.push_back({UnitCut::Kind::kHalves, 0});
  return found;
}

std::vector<Cuts> cuts_for(const Choices& choices) {
  std::vector<Cuts> found;
  for (const auto& [name, value] : cuts()) {
    if (allows(choices.cuts, value)) found.push_back(value);
  }
  return found;
}

std::vector<bool> recompute_for(const Choices& choices) {
  if (choices.recompute) return {*choices.recompute};
  return {false, true};
}

// Where ranks share memory a gather is free, and nothing replicated is gathered.
std::vector<int> prefetch_for(Strategy strategy, int hosts) {
  const bool gathers_between_hosts =
      hosts > 1 && (strategy == Strategy::kFullShard || strategy == Strategy::kShardGradOp ||
                    strategy == Strategy::kShardOptimizerOnly);
  if (gathers_between_hosts) return {1, 0};
  return {0};
}

void add_granularities(Candidate candidate, int layers, int hosts, const Choices& choices,
                       std::vector<Candidate>& all) {
  for (const UnitCut& units : units_for(layers, choices)) {
    candidate.units = units;
    for (const int prefetch : prefetch_for(candidate.strategy, hosts)) {
      candidate.prefetch = prefetch;
      all.push_back(candidate);
    }
  }
}

}  // namespace

base::DType compute_dtype(Precision precision) {
  if (precision == Precision::kBFloat16) return base::DType::kBFloat16;
  return shard_dtype(precision);
}

base::DType shard_dtype(Precision precision) {
  return precision == Precision::kFloat64 ? base::DType::kFloat64 : base::DType::kFloat32;
}

std::string_view to_string(Strategy strategy) { return name_of(strategies(), strategy); }
std::string_view to_string(Cuts value) { return name_of(cuts(), value); }
std::string_view to_string(Precision precision) { return name_of(precisions(), precision); }

std::string to_string(const UnitCut& units) {
  switch (units.kind) {
    case UnitCut::Kind::kHalves: return "halves";
    case UnitCut::Kind::kWhole: return "whole";
    case UnitCut::Kind::kBlocks: break;
  }
  return units.blocks == 1 ? "blocks" : fmt::format("{} blocks", units.blocks);
}

Strategy parse_strategy(const std::string& text) { return named("strategy", strategies(), text); }
Cuts parse_cuts(const std::string& text) { return named("atoms", cuts(), text); }
Precision parse_precision(const std::string& text) {
  return named("precision", precisions(), text);
}
std::optional<bool> parse_recompute(const std::string& text) {
  return named("recompute", recomputations(), text);
}

UnitCut parse_units(const std::string& text) {
  if (text == "halves") return {UnitCut::Kind::kHalves, 0};
  if (text == "whole") return {UnitCut::Kind::kWhole, 0};
  if (text == "blocks") return {};
  int blocks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), blocks);
  if (error == std::errc{} && end == text.data() + text.size() && blocks >= 1) {
    return {UnitCut::Kind::kBlocks, blocks};
  }
  throw base::Error(base::ErrorCode::kUsage,
                    fmt::format("--units: found \"{}\"; expected halves, blocks, whole or a number "
                                "of blocks, 1 or more",
                                text));
}

std::vector<Candidate> candidates(int layers, int hosts, const Choices& choices) {
  std::vector<Candidate> all;
  for (const bool recompute : recompute_for(choices)) {
    for (const Strategy strategy : strategies_for(hosts, choices)) {
      for (const Cuts where : cuts_for(choices)) {
        add_granularities({strategy, {}, where, recompute}, layers, hosts, choices, all);
      }
    }
  }
  return all;
}

}  // namespace fullshard::planner
