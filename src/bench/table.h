#pragma once

#include <string>
#include <vector>

namespace fullshard::bench {

/// Rows of cells as text: the first row is the heading, columns are as wide as they need, the first
/// one is set left and the others right. Rows may be short. Every line ends with a line's end.
std::string render_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace fullshard::bench
