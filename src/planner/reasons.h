#pragma once

#include <string>
#include <vector>

#include "fullshard/planner/plan.h"

namespace fullshard::planner {

/// Why the first way of a plan that fits was chosen, and what limits it.
std::vector<std::string> reasons_of(const Plan& plan);

}  // namespace fullshard::planner
