#include <c10/util/hash.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>
#include <system_error>

#include "data/subprocess.h"
#include "fullshard/base/error.h"
#include "fullshard/data/corpus.h"

namespace fullshard::data {
namespace {

namespace fs = std::filesystem;

constexpr std::ptrdiff_t kVerses = 31102;
constexpr std::string_view kFirst =
    "Ge1:1 In the beginning God created the heaven and the earth.\n";
constexpr std::string_view kLast = "\nRev22:21 The grace of our Lord Jesus Christ";
constexpr std::string_view kCachePrefix = "bible-kjv-";

bool is_whole_bible(std::string_view text) {
  return text.starts_with(kFirst) && std::count(text.begin(), text.end(), '\n') == kVerses &&
         text.rfind(kLast) != std::string_view::npos;
}

std::string cache_name(const std::string& text) {
  return fmt::format("{}{}.txt", kCachePrefix, c10::sha1(text).str());
}

/// The content of the first cached file that has the hash its name promises, else empty.
std::string read_cache(const fs::path& folder) {
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(folder, absent)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kCachePrefix) || !name.ends_with(".txt")) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    if (cache_name(text) == name && is_whole_bible(text)) return text;
  }
  return {};
}

/// Best effort: a run without a cache is slower by a tenth of a second and no worse.
void write_cache(const fs::path& folder, const std::string& text) {
  std::error_code error;
  fs::create_directories(folder, error);
  const fs::path temporary =
      folder / fmt::format(".bible-kjv-{}-{:x}", getpid(), std::random_device{}());
  std::ofstream file(temporary, std::ios::binary);
  file << text;
  file.close();
  if (file.good()) fs::rename(temporary, folder / cache_name(text), error);
  if (!file.good() || error) fs::remove(temporary, error);
}

std::string print_bible(const std::string& program) {
  constexpr std::string_view kRemedy =
      "the default text needs Debian's package bible-kjv (apt-get install bible-kjv); "
      "or train on a file of your own with --data.path";
  std::string text;
  try {
    text = output_of({program, "-f", "gen1:1-rev22:21"});
  } catch (const base::Error& error) {
    throw base::Error(error.code(), fmt::format("{}; {}", error.what(), kRemedy));
  }
  if (is_whole_bible(text)) return text;
  throw base::Error(base::ErrorCode::kFile,
                    fmt::format("\"{}\" printed {} bytes that are not the King James Version; {}",
                                program, text.size(), kRemedy));
}

}  // namespace

fs::path default_cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && fs::path(cache).is_absolute()) return fs::path(cache) / "fullshard";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return fs::path(home) / ".cache" / "fullshard";
  return {};
}

Text load_bible(const BibleOptions& options) {
  const bool cached = !options.cache_folder.empty();
  std::string text = cached ? read_cache(options.cache_folder) : std::string();
  if (text.empty()) {
    text = print_bible(options.program);
    if (cached) write_cache(options.cache_folder, text);
  }
  return std::make_shared<const std::string>(std::move(text));
}

}  // namespace fullshard::data
