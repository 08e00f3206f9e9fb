#pragma once

#include <cstdint>
#include <string>

namespace fullshard::trainer {

/// "12,345".
std::string grouped(std::int64_t number);

/// "0.45 s", "8.3 s", "1 min 23 s", "2 h 3 min".
std::string duration(double seconds);

/// Of a remaining time, for a line that is redrawn: "0:08", "1:23", "2:03:04".
std::string clock_time(double seconds);

}  // namespace fullshard::trainer
