#include "fullshard/base/text.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace fullshard::base {
namespace {

// The definition of a match, without any cleverness.
bool matches_by_definition(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] == '*') {
    for (std::size_t skip = 0; skip <= text.size(); ++skip) {
      if (matches_by_definition(pattern.substr(1), text.substr(skip))) return true;
    }
    return false;
  }
  if (text.empty() || (pattern[0] != '?' && pattern[0] != text[0])) return false;
  return matches_by_definition(pattern.substr(1), text.substr(1));
}

std::string word_of(const std::string& letters, std::size_t below) {
  const auto size = *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::size_t>(0, below));
  return *rc::gen::container<std::string>(size, rc::gen::elementOf(letters));
}

RC_GTEST_PROP(GlobProperty, AgreesWithTheDefinition, ()) {
  const std::string pattern = word_of("ab*?", 8);
  const std::string text = word_of("ab*?", 10);
  RC_ASSERT(matches_glob(pattern, text) == matches_by_definition(pattern, text));
}

RC_GTEST_PROP(GlobProperty, EveryTextMatchesItself, ()) {
  const std::string text = word_of("ab.*?", 12);
  RC_ASSERT(matches_glob(text, text));
}

TEST(Glob, ParameterNames) {
  EXPECT_TRUE(matches_glob("*norm*", "blocks.3.norm1.weight"));
  EXPECT_TRUE(matches_glob("blocks.?.norm?.weight", "blocks.3.norm1.weight"));
  EXPECT_FALSE(matches_glob("blocks.?.norm1.weight", "blocks.13.norm1.weight"));
  EXPECT_TRUE(matches_glob("*.bias", "head.bias"));
  EXPECT_FALSE(matches_glob("*.bias", "head.bias.more"));
  EXPECT_TRUE(matches_glob("*", ""));
  EXPECT_TRUE(matches_glob("", ""));
  EXPECT_FALSE(matches_glob("", "a"));
}

TEST(Glob, ManyStarsTakeNoExponentialTime) {
  const std::string text(200, 'a');
  std::string pattern;
  for (int i = 0; i < 60; ++i) pattern += "a*";
  EXPECT_TRUE(matches_glob(pattern, text));
  EXPECT_FALSE(matches_glob(pattern + "b", text));
}

const std::vector<std::string> kSections = {"training", "model", "optimizer", "checkpoint"};

TEST(NearestName, FindsWhatAMisspeltNameWasMeantToBe) {
  EXPECT_EQ(nearest_name("trainnig", kSections), "training");
  EXPECT_EQ(nearest_name("modle", kSections), "model");
  EXPECT_EQ(nearest_name("optimiser", kSections), "optimizer");
}

TEST(NearestName, IsEmptyWhenNothingIsNear) {
  EXPECT_EQ(nearest_name("zzzzzz", kSections), "");
  EXPECT_EQ(nearest_name("", kSections), "");
  EXPECT_EQ(nearest_name("model", {}), "");
}

TEST(NearestName, ReachesToHalfTheLengthOfTheWord) {
  const std::vector<std::string> names = {"abcd"};
  EXPECT_EQ(nearest_name("abxx", names), "abcd");
  EXPECT_EQ(nearest_name("axxx", names), "");
}

RC_GTEST_PROP(NearestNameProperty, AKnownNameIsItsOwnNearest, ()) {
  const std::string name = *rc::gen::elementOf(kSections);
  RC_ASSERT(nearest_name(name, kSections) == name);
}

// The sections differ from each other by far more than two letters.
RC_GTEST_PROP(NearestNameProperty, OneWrongLetterIsForgiven, ()) {
  const std::string name = *rc::gen::elementOf(kSections);
  const auto at = *rc::gen::inRange<std::size_t>(0, name.size());
  const std::string letter = word_of("xyz", 2);  // none: the letter is left out
  std::string misspelt = name;
  misspelt.replace(at, 1, letter);
  RC_ASSERT(nearest_name(misspelt, kSections) == name);
}

TEST(FormatBytes, ChoosesTheUnitPeopleRead) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(std::int64_t{16} << 20), "16.00 MiB");
  EXPECT_EQ(format_bytes(3435973837), "3.20 GiB");
  EXPECT_EQ(format_bytes(std::int64_t{5} << 40), "5.00 TiB");
  EXPECT_EQ(format_bytes(std::int64_t{1} << 55), "32768.00 TiB");
}

TEST(FormatBytes, NeverPrintsAFullUnitInTheSmallerOne) {
  EXPECT_EQ(format_bytes((1 << 20) - 1), "1.00 MiB");
  EXPECT_EQ(format_bytes((std::int64_t{1} << 40) - 1), "1.00 TiB");
}

}  // namespace
}  // namespace fullshard::base
