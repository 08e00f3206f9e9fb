#include "cli/parsing.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>

#include "fullshard/base/error.h"
#include "fullshard/base/text.h"

namespace fullshard::cli {

void fail_usage(const std::string& message) { throw base::Error(base::ErrorCode::kUsage, message); }

bool is_option(const std::string& argument) { return argument.starts_with('-'); }

std::string without_value(const std::string& argument) {
  return argument.substr(0, argument.find('='));
}

std::string first_option(const std::vector<std::string>& extras, const std::string& config_file) {
  const auto option = std::ranges::find_if(extras, is_option);
  if (option != extras.end()) return without_value(*option);
  fail_usage(fmt::format("unexpected argument '{}'; the configuration file is already '{}'",
                         extras.front(), config_file));
}

void fail_unknown(std::string_view kind, const std::string& word,
                  const std::vector<std::string>& known, std::string_view help) {
  const std::string nearest = base::nearest_name(word, known);
  fail_usage(nearest.empty() ? fmt::format("unknown {} '{}'; see '{}'", kind, word, help)
                             : fmt::format("unknown {} '{}'; the nearest known one is '{}'", kind,
                                           word, nearest));
}

void prepare(CLI::App& app, bool& help) {
  app.set_help_flag();
  app.allow_extras();
  app.add_flag("-h,--help", help);
}

}  // namespace fullshard::cli
