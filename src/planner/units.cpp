#include "planner/units.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace fullshard::planner {
namespace {

constexpr int kRoot = 0;

class Cutter {
 public:
  Cutter(const std::vector<Stage>& stages, const UnitCut& cut, bool recompute)
      : stages_(stages), cut_(cut), recompute_(recompute) {
    set_.units.push_back({.name = "(root)", .modules = {}, .parameters = {}});
  }

  UnitSet run() {
    for (const Stage& stage : stages_) assign(stage);
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      visit(unit_of_[s], schedule::Phase::kForward, stages_[s].forward_flops);
    }
    for (std::size_t s = stages_.size(); s-- > 0;) go_back(s);
    note_completion();
    return std::move(set_);
  }

 private:
  void assign(const Stage& stage) {
    const int unit = unit_for(stage);
    unit_of_.push_back(unit);
    Unit& to = set_.units[static_cast<std::size_t>(unit)];
    to.parameters.insert(to.parameters.end(), stage.parameters.begin(), stage.parameters.end());
    if (unit != kRoot) add_modules(stage, to);
  }

  int unit_for(const Stage& stage) {
    if (stage.block < 0 || cut_.kind == UnitCut::Kind::kWhole) return kRoot;
    const bool halves = cut_.kind == UnitCut::Kind::kHalves;
    const int group = halves ? stage.block : stage.block / cut_.blocks;
    if (halves || group != group_) {
      group_ = group;
      set_.units.emplace_back();
    }
    return static_cast<int>(set_.units.size()) - 1;
  }

  void add_modules(const Stage& stage, Unit& unit) const {
    if (cut_.kind == UnitCut::Kind::kHalves) {
      unit.modules = stage.modules;
    } else if (unit.modules.empty() || unit.modules.back() != stage.block_module) {
      unit.modules.push_back(stage.block_module);
    }
    unit.name = fmt::format("{}", fmt::join(unit.modules, " + "));
  }

  // A block is computed again as a whole before its backward.
  void go_back(std::size_t s) {
    const Stage& stage = stages_[s];
    const bool ends_block = s + 1 == stages_.size() || stages_[s + 1].block != stage.block;
    if (recompute_ && stage.block >= 0 && ends_block) compute_again(stage.block);
    if (stage.looks_up) {
      set_.visits.back().flops += 2 * stage.forward_flops;
    } else {
      visit(unit_of_[s], schedule::Phase::kBackward, 2 * stage.forward_flops);
    }
  }

  void compute_again(int block) {
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (stages_[s].block != block) continue;
      visit(unit_of_[s], schedule::Phase::kRecompute, stages_[s].forward_flops);
    }
  }

  void visit(int unit, schedule::Phase phase, double flops) {
    const bool goes_on = !set_.visits.empty() && set_.visits.back().unit == unit &&
                         set_.visits.back().phase == phase;
    if (!goes_on) set_.visits.push_back({.unit = unit, .phase = phase});
    set_.visits.back().flops += flops;
  }

  void note_completion() {
    set_.completed_by.resize(set_.units.size(), 0);
    for (std::size_t v = 0; v < set_.visits.size(); ++v) {
      set_.completed_by[static_cast<std::size_t>(set_.visits[v].unit)] = v;
    }
    set_.completed_by[kRoot] = set_.visits.size() - 1;
  }

  const std::vector<Stage>& stages_;
  const UnitCut& cut_;
  bool recompute_;
  UnitSet set_;
  std::vector<int> unit_of_;  // by stage
  int group_ = -1;            // of the last unit of blocks
};

}  // namespace

schedule::Trace UnitSet::trace() const {
  schedule::Trace trace;
  for (const Visit& visit : visits) trace.add({visit.unit, visit.phase});
  return trace;
}

UnitSet cut_into_units(const std::vector<Stage>& stages, const UnitCut& cut,
                       const std::vector<AtomRule>& rules, bool recompute) {
  UnitSet set = Cutter(stages, cut, recompute).run();
  for (Unit& unit : set.units) apply_rules(rules, unit.parameters);
  return set;
}

std::vector<layout::UnitLayout> lay_out(const UnitSet& set, int ranks) {
  std::vector<layout::UnitLayout> layouts;
  for (const Unit& unit : set.units) {
    layouts.push_back(layout::UnitLayout::make(unit.name, unit.parameters, {.world = ranks}));
  }
  return layouts;
}

std::int64_t copied_gradient_bytes(const Unit& unit) {
  std::int64_t bytes = 0;
  for (const layout::ParameterSpec& parameter : unit.parameters) {
    if (layout::cut_dimension(parameter) == 0) continue;
    bytes += layout::numel(parameter.name, parameter.shape) *
             static_cast<std::int64_t>(base::size_of(parameter.dtype));
  }
  return bytes;
}

}  // namespace fullshard::planner
