#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fullshard/schedule/schedule.h"

namespace fullshard::schedule {

/// Whether a list with one entry a unit, or none at all, names this one.
inline bool names(const std::vector<bool>& list, std::size_t unit) {
  return !list.empty() && list[unit];
}

inline bool within_limit(const ScheduleOptions& options, std::int64_t bytes) {
  return options.max_unsharded_bytes == 0 || bytes <= options.max_unsharded_bytes;
}

/// Throws base::Error(kInvalidArgument) when a unit alone is above the limit.
void check_fits(int unit, std::int64_t bytes, const ScheduleOptions& options);

/// Throws base::Error(kInvalidArgument): units that one operator uses, the touched one among them,
/// are above the limit together.
[[noreturn]] void refuse_together(const Touch& touch, std::int64_t bytes,
                                  const ScheduleOptions& options);

/// Throws base::Error(kInvalidArgument) when there is no such unit among `units`.
void check_known(int unit, std::size_t units);

}  // namespace fullshard::schedule
