#pragma once

#include <exception>
#include <string_view>

namespace fullshard::base {

/// Environment variable with the descriptor to which a rank writes why it fails.
inline constexpr const char* kErrorFdVariable = "FULLSHARD_ERROR_FD";

/// Environment variable with the file in which torch's elastic agent looks for a rank's error.
inline constexpr const char* kElasticErrorFileVariable = "TORCHELASTIC_ERROR_FILE";

/// Says why this process is about to fail, once: to the launcher that started it (which then shows
/// the first cause of the whole job), or on stderr when no launcher listens; and to torchrun, in
/// the form of its own reports. Any thread.
void report_error(const std::exception& error) noexcept;

}  // namespace fullshard::base
