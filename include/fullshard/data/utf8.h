#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace fullshard::data {

/// Offset of the first byte that is not part of well-formed UTF-8 (Unicode 15, table 3-7).
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

}  // namespace fullshard::data
