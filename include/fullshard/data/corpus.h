#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace fullshard::data {

/// Text in memory, shared by everything that reads from it.
using Text = std::shared_ptr<const std::string>;

/// Where the default corpus comes from: Debian's package bible-kjv, whose program prints it.
struct BibleOptions {
  std::string program = "bible";  ///< looked up on PATH
  /// Folder that keeps the printed text between runs; empty: none. Running the program takes about
  /// 0.1 s, so this matters where many ranks start often.
  std::filesystem::path cache_folder;
};

/// $XDG_CACHE_HOME/fullshard, else $HOME/.cache/fullshard, else empty.
std::filesystem::path default_cache_folder();

/// The King James Version, one verse a line behind its reference ("Ge1:1 In the beginning ...").
/// Several processes may call it at once: the cached file is put in place whole, and its name holds
/// the hash that its content must have. A folder that cannot be written is not an error.
/// Throws kFile: the program is absent (says which package brings it) or prints something else.
Text load_bible(const BibleOptions& options = {.cache_folder = default_cache_folder()});

/// A file as it is. Throws kFile when it cannot be read, is empty, or is not UTF-8 (says at which
/// byte).
Text load_text_file(const std::filesystem::path& path);

/// The text cut in two without overlap.
struct Split {
  std::string_view train;
  std::string_view validation;  ///< the last validation_fraction of the bytes, rounded down
};

/// Views into `text`, which must outlive them. Throws kInvalidArgument unless 0 <= fraction < 1.
Split split(std::string_view text, double validation_fraction);

}  // namespace fullshard::data
