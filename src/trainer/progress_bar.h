#pragma once

#include <cstdint>
#include <string>

namespace fullshard::trainer {

/// Where a run stands.
struct Progress {
  std::int64_t done = 0;  ///< steps
  std::int64_t total = 1;
  double seconds = 0;  ///< since the first step began
  double loss = 0;
};

/// One line of at most `columns` columns: share, steps, loss, and the time that is left if it goes
/// on as so far; between them a bar over what room there is. Colour takes no columns.
std::string progress_bar(const Progress& progress, int columns, bool colour);

}  // namespace fullshard::trainer
