#pragma once

#include <string_view>

namespace fullshard::base {

/// Writes "fullshard: warning: <message>" to standard error as one line.
void warn(std::string_view message);

/// Writes "fullshard: <message>" to standard error as one line.
void inform(std::string_view message);

}  // namespace fullshard::base
