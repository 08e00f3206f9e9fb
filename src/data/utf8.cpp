#include "fullshard/data/utf8.h"

#include <array>
#include <cstdint>

namespace fullshard::data {
namespace {

/// A lead byte's range, the range of the byte after it and the length of the sequence. The special
/// second ranges keep out overlong forms, surrogates and values above U+10FFFF.
struct Form {
  std::uint8_t first_low, first_high, second_low, second_high;
  std::size_t length;
};

constexpr std::array<Form, 8> kForms = {{
    {0xC2, 0xDF, 0x80, 0xBF, 2},
    {0xE0, 0xE0, 0xA0, 0xBF, 3},
    {0xE1, 0xEC, 0x80, 0xBF, 3},
    {0xED, 0xED, 0x80, 0x9F, 3},
    {0xEE, 0xEF, 0x80, 0xBF, 3},
    {0xF0, 0xF0, 0x90, 0xBF, 4},
    {0xF1, 0xF3, 0x80, 0xBF, 4},
    {0xF4, 0xF4, 0x80, 0x8F, 4},
}};

std::uint8_t byte_at(std::string_view text, std::size_t i) {
  return static_cast<std::uint8_t>(text[i]);
}

bool matches(const Form& form, std::string_view text) {
  if (text.size() < form.length) return false;
  const std::uint8_t second = byte_at(text, 1);
  if (second < form.second_low || second > form.second_high) return false;
  for (std::size_t i = 2; i < form.length; ++i) {
    if ((byte_at(text, i) & 0xC0) != 0x80) return false;
  }
  return true;
}

/// Bytes of the character at the front, 0 when it is not well-formed.
std::size_t character_length(std::string_view text) {
  const std::uint8_t first = byte_at(text, 0);
  if (first < 0x80) return 1;
  for (const Form& form : kForms) {
    if (first < form.first_low || first > form.first_high) continue;
    return matches(form, text) ? form.length : 0;
  }
  return 0;
}

}  // namespace

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = character_length(text.substr(i));
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

}  // namespace fullshard::data
