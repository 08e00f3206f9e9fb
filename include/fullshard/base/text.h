#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fullshard::base {

/// Whether `text` matches a shell-style pattern in which `*` stands for any run of characters and
/// `?` for any one character.
bool matches_glob(std::string_view pattern, std::string_view text);

/// The candidate with the smallest Levenshtein distance to `word`, or an empty string when every
/// one is farther than half the word's length: used to suggest what a misspelt name was meant to
/// be.
std::string nearest_name(std::string_view word, std::span<const std::string> candidates);

/// Bytes in a unit people read: "512 B", "1.50 KiB", "3.20 GiB".
std::string format_bytes(std::int64_t bytes);

/// "rank 2", "ranks 0, 1 and 3"; long lists are cut.
std::string name_ranks(std::span<const int> ranks);

}  // namespace fullshard::base
