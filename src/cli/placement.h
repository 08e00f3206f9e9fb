#pragma once

#include <optional>

namespace fullshard::cli {

/// Where a launcher has put this process.
struct Placement {
  int world_size;
  int local_size;  ///< ranks on this host
};

/// Placement by RANK, WORLD_SIZE and LOCAL_WORLD_SIZE (WORLD_SIZE when absent); nothing when RANK
/// is not set. Throws base::Error(kConfiguration) naming the variable that is missing or wrong.
std::optional<Placement> placement_from_environment();

/// OMP_NUM_THREADS when it is set to a number, else 0.
int threads_from_environment();

}  // namespace fullshard::cli
