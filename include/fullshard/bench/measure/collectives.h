#pragma once

#include <vector>

#include "fullshard/bench/collectives_spec.h"
#include "fullshard/comm/world.h"

namespace fullshard::bench::measure {

/// Collective: measures as `spec` says over the world that was made for it. Each operation is
/// repeated for some tenths of a second, all ranks beginning together; every rank gets the times of
/// the slowest. Results are checked once. Throws base::Error(kInternal) for a wrong one.
std::vector<CollectiveTime> measure_collectives(const CollectivesSpec& spec, comm::World& world);

}  // namespace fullshard::bench::measure
