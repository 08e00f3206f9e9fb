#pragma once

#include <vector>

#include "fullshard/planner/plan.h"

namespace fullshard::planner {

/// Of `choices`, the way to train that needs least memory on a host.
Assessment smallest(const Job& job, const Choices& choices);

/// What would help a job of which nothing fits: those that make it fit first.
std::vector<Remedy> remedies_for(const Job& job, const Choices& choices);

}  // namespace fullshard::planner
