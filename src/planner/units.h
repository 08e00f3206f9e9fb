#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fullshard/layout/unit_layout.h"
#include "fullshard/planner/candidate.h"
#include "fullshard/planner/heads.h"
#include "fullshard/planner/model.h"
#include "fullshard/schedule/trace.h"

namespace fullshard::planner {

struct Unit {
  std::string name;                               ///< "(root)", or its modules
  std::vector<std::string> modules;               ///< empty for the root
  std::vector<layout::ParameterSpec> parameters;  ///< atoms included
};

/// A unit at work: consecutive stages of one unit are one visit, as they are one event of a trace.
struct Visit {
  int unit = 0;
  schedule::Phase phase = schedule::Phase::kForward;
  double flops = 0;  ///< a token
};

/// A model cut into units, and the order in which a step uses them.
struct UnitSet {
  std::vector<Unit> units;    ///< the root first
  std::vector<Visit> visits;  ///< of a forward and its backward
  /// By unit: the visit that completes its gradients; the root's embedding is last in backward.
  std::vector<std::size_t> completed_by;

  schedule::Trace trace() const;
};

/// `rules` give the atoms. With `recompute`, each block is computed again before its backward.
UnitSet cut_into_units(const std::vector<Stage>& stages, const UnitCut& cut,
                       const std::vector<AtomRule>& rules, bool recompute);

/// Every unit over `ranks` ranks.
std::vector<layout::UnitLayout> lay_out(const UnitSet& set, int ranks);

/// Bytes of those parameters of a unit whose gradients autograd makes in another order than the
/// unit has, so that they are copied: matrices cut into columns.
std::int64_t copied_gradient_bytes(const Unit& unit);

}  // namespace fullshard::planner
