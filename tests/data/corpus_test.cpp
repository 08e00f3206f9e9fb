#include "fullshard/data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "data/counting_source.h"
#include "support/temporary_folder.h"

namespace fullshard::data {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Corpus : public ::testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& content) const {
    std::ofstream(folder / name, std::ios::binary) << content;
    return folder / name;
  }

  /// A program that counts its runs and prints what `bible` prints, or something else.
  BibleOptions program(const std::string& body) const {
    const fs::path script =
        write("program", "#!/bin/sh\necho run >> '" + (folder / "runs").string() + "'\n" + body);
    fs::permissions(script, fs::perms::owner_all);
    return {.program = script.string(), .cache_folder = folder / "cache" / "deep"};
  }

  std::ptrdiff_t runs() const {
    std::ifstream file(folder / "runs");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return std::count(text.begin(), text.end(), '\n');
  }

  std::vector<fs::path> cached() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder / "cache" / "deep")) {
      files.push_back(entry.path());
    }
    return files;
  }

  fullshard::testing::TemporaryFolder temporary;
  const fs::path& folder = temporary.path();
};

TEST_F(Corpus, TheBibleIsOneVerseALine) {
  const Text text = load_bible({.cache_folder = {}});
  EXPECT_GT(text->size(), 4'000'000u);
  EXPECT_TRUE(text->starts_with("Ge1:1 In the beginning God created the heaven and the earth.\n"));
  EXPECT_THAT(*text, HasSubstr("\nJohn11:35 Jesus wept.\n"));
}

TEST_F(Corpus, TheBibleIsPrintedOnceAndThenReadFromTheCache) {
  const auto options = program("exec bible \"$@\"\n");
  const Text first = load_bible(options);
  const Text second = load_bible(options);
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(runs(), 1);
  EXPECT_EQ(cached().size(), 1u);
}

TEST_F(Corpus, ADamagedCacheIsReplaced) {
  const auto options = program("exec bible \"$@\"\n");
  const Text first = load_bible(options);
  const fs::path file = cached().at(0);
  {
    std::fstream change(file, std::ios::in | std::ios::out | std::ios::binary);
    change.seekp(1'000'000);
    change.put('#');
  }
  EXPECT_EQ(*load_bible(options), *first);
  EXPECT_EQ(runs(), 2);
  EXPECT_EQ(*load_bible(options), *first);
  EXPECT_EQ(runs(), 2) << "the replaced cache was not used";
  EXPECT_EQ(cached(), std::vector<fs::path>{file});
}

TEST_F(Corpus, RanksMayRaceForTheCache) {
  const auto options = program("exec bible \"$@\"\n");
  std::vector<Text> texts(4);
  {
    std::vector<std::jthread> ranks;
    for (Text& text : texts) ranks.emplace_back([&] { text = load_bible(options); });
  }
  for (const Text& text : texts) EXPECT_EQ(*text, *texts[0]);
  EXPECT_EQ(cached().size(), 1u);
}

TEST_F(Corpus, AFolderThatCannotBeMadeIsNoError) {
  auto options = program("exec bible \"$@\"\n");
  options.cache_folder = write("file", "x") / "below";
  EXPECT_GT(load_bible(options)->size(), 4'000'000u);
}

TEST_F(Corpus, AnAbsentProgramNamesThePackage) {
  const std::string message = error_of(base::ErrorCode::kFile, [] {
    load_bible({.program = "fullshard-no-such-program", .cache_folder = {}});
  });
  EXPECT_THAT(message, AllOf(HasSubstr("fullshard-no-such-program"),
                             HasSubstr("apt-get install bible-kjv"), HasSubstr("--data.path")));
}

TEST_F(Corpus, AProgramThatPrintsSomethingElseIsNamed) {
  const auto options = program("echo hello\n");
  const std::string message = error_of(base::ErrorCode::kFile, [&] { load_bible(options); });
  EXPECT_THAT(message, AllOf(HasSubstr("printed 6 bytes"), HasSubstr("bible-kjv")));
  EXPECT_FALSE(fs::exists(options.cache_folder));
}

TEST_F(Corpus, TheCacheFolderFollowsTheEnvironment) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string old_cache = cache ? cache : "";
  const std::string old_home = home ? home : "";
  setenv("HOME", "/home/someone", 1);
  setenv("XDG_CACHE_HOME", "/var/caches", 1);
  EXPECT_EQ(default_cache_folder(), "/var/caches/fullshard");
  setenv("XDG_CACHE_HOME", "relative", 1);  // to be ignored, says the XDG specification
  EXPECT_EQ(default_cache_folder(), "/home/someone/.cache/fullshard");
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(default_cache_folder(), "/home/someone/.cache/fullshard");
  unsetenv("HOME");
  EXPECT_EQ(default_cache_folder(), "");
  if (cache) setenv("XDG_CACHE_HOME", old_cache.c_str(), 1);
  if (home) setenv("HOME", old_home.c_str(), 1);
}

TEST_F(Corpus, TextFilesAreReadAsTheyAre) {
  const std::string content = "z\xc3\xa9ro\r\n\0end" + std::string(1, '\0') + "\xf0\x9f\x90\x9f";
  EXPECT_EQ(*load_text_file(write("text", content)), content);
}

TEST_F(Corpus, UnusableFilesAreNamed) {
  const auto message = [](const fs::path& path) {
    return error_of(base::ErrorCode::kFile, [&] { load_text_file(path); });
  };
  const auto latin = write("latin.txt", "caf\xe9 noir");
  EXPECT_THAT(message(latin), AllOf(HasSubstr(latin.string()), HasSubstr("0xe9 at offset 3")));
  EXPECT_THAT(message(folder / "absent.txt"),
              AllOf(HasSubstr("absent.txt"), HasSubstr("No such file")));
  EXPECT_THAT(message(write("empty.txt", "")),
              AllOf(HasSubstr("empty.txt"), HasSubstr("is empty")));
  EXPECT_THAT(message(folder), HasSubstr("folder"));
}

TEST_F(Corpus, TheValidationTextIsTheEnd) {
  const Split parts = split("abcdefghij", 0.25);
  EXPECT_EQ(parts.train, "abcdefgh");
  EXPECT_EQ(parts.validation, "ij");
  EXPECT_EQ(split("abc", 0).validation, "");
  for (const double fraction : {1.0, -0.1, std::nan("")}) {
    EXPECT_THAT(error_of(base::ErrorCode::kInvalidArgument, [&] { split("abc", fraction); }),
                HasSubstr("validation_fraction must be from 0 to below 1"));
  }
}

}  // namespace
}  // namespace fullshard::data
