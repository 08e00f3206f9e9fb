#pragma once

#include <string>
#include <vector>

namespace fullshard::data {

/// What the program prints on standard output, with an empty standard input. The program is looked
/// up on PATH. Throws kFile when it cannot be started; how it ended is the caller's matter, by the
/// text.
std::string output_of(const std::vector<std::string>& command);

}  // namespace fullshard::data
