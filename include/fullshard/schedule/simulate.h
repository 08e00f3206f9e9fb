#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fullshard/schedule/schedule.h"

namespace fullshard::schedule {

struct SimulationResult {
  std::int64_t peak_bytes = 0;             ///< most gathered bytes at any time
  std::int64_t gathers = 0;                ///< units gathered in the step, ahead or on touch
  std::int64_t collectives = 0;            ///< the same, those that go together counted once
  std::int64_t gathered_bytes = 0;         ///< bytes of all gathers together
  std::vector<std::int64_t> unit_gathers;  ///< gathers by unit
};

/// Replays a schedule without tensors, as the first step after an update, in which what stays is
/// gathered; in later ones it is there from the beginning, so that their peak may be higher.
/// Throws base::Error(kInvalidArgument) naming the event when the schedule evicts a unit that is
/// not resident, gathers one ahead that is, joins one to a gather that is none, names a unit that
/// unit_bytes lacks, leaves a unit resident at the end that does not stay, or evicts one that does.
SimulationResult simulate(const Schedule& schedule, std::span<const std::int64_t> unit_bytes);

}  // namespace fullshard::schedule
