#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fullshard::bench {

// Options that cannot be used, as people gave them. Flags are named without dashes.

/// Throws base::Error(kUsage).
[[noreturn]] void refuse(const std::string& message);

void require_between(const char* flag, std::int64_t value, std::int64_t low, std::int64_t high);

void require_one_of(const char* flag, const std::string& value,
                    const std::vector<std::string>& known);

}  // namespace fullshard::bench
