#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace fullshard::cli {

// What the parsers of all commands share. Errors are base::Error(kUsage).

[[noreturn]] void fail_usage(const std::string& message);

bool is_option(const std::string& argument);

/// "--name" of "--name=value".
std::string without_value(const std::string& argument);

/// Of what a command that takes a configuration file did not understand, the first option, without
/// its value. Says so where there are only words, since one file is all it takes.
std::string first_option(const std::vector<std::string>& extras, const std::string& config_file);

/// Says that `word` is no `kind` ("option", "command"), with the nearest known one, or else where
/// the known ones are listed.
[[noreturn]] void fail_unknown(std::string_view kind, const std::string& word,
                               const std::vector<std::string>& known, std::string_view help);

/// Help is shown by fullshard itself, and what a parser does not know is left to refuse() it.
void prepare(CLI::App& app, bool& help);

}  // namespace fullshard::cli
