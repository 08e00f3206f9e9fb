#pragma once

#include <exception>
#include <string_view>

namespace fullshard::base {

/// Environment variable with the descriptor to which a rank writes why it fails.
inline constexpr const char* kErrorFdVariable = "FULLSHARD_ERROR_FD";

/// Says why this process is about to fail, once: to the launcher that started it (which then shows
/// the first cause of the whole job), or on stderr when no launcher listens. Any thread.
void report_error(const std::exception& error) noexcept;

}  // namespace fullshard::base
