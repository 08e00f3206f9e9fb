#include "fullshard/data/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace fullshard::data {
namespace {

std::string encode(char32_t c) {
  std::string out;
  const auto put = [&](unsigned value) { out.push_back(static_cast<char>(value)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
  return out;
}

TEST(Utf8, AcceptsEveryCharacterAndNoSurrogate) {
  for (char32_t c = 0; c <= 0x110000; ++c) {
    const bool valid = c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF);
    ASSERT_EQ(first_invalid_utf8(encode(c)).has_value(), !valid) << static_cast<std::uint32_t>(c);
  }
}

TEST(Utf8, SaysWhereTheFirstBadByteIs) {
  const auto offset = [](std::string_view text) { return first_invalid_utf8(text).value_or(999); };
  EXPECT_EQ(offset("abc\xff"), 3u);
  EXPECT_EQ(offset("\x80"), 0u);              // a continuation without a lead
  EXPECT_EQ(offset("a\xc3"), 1u);             // cut off
  EXPECT_EQ(offset("a\xe2\x82"), 1u);         // cut off
  EXPECT_EQ(offset("\xc3\xa9\xc0\xaf"), 2u);  // overlong
  EXPECT_EQ(offset("\xe0\x80\xaf"), 0u);      // overlong
  EXPECT_EQ(offset("\xf4\x90\x80\x80"), 0u);  // above U+10FFFF
  EXPECT_EQ(offset("\xc3\x28"), 0u);          // a lead without continuation
  EXPECT_EQ(offset("caf\xe9"), 3u);           // Latin-1
  EXPECT_EQ(offset(""), 999u);
}

}  // namespace
}  // namespace fullshard::data
