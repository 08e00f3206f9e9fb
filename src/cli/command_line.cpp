#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <deque>

#include "cli/help.h"
#include "fullshard/base/error.h"
#include "fullshard/base/text.h"
#include "fullshard/config/render.h"
#include "fullshard/config/schema.h"

namespace fullshard::cli {
namespace {

[[noreturn]] void fail(const std::string& message) {
  throw base::Error(base::ErrorCode::kUsage, message);
}

bool is_option(const std::string& argument) { return argument.starts_with('-'); }

std::string without_value(const std::string& argument) {
  return argument.substr(0, argument.find('='));
}

[[noreturn]] void fail_unknown(std::string_view kind, const std::string& word,
                               const std::vector<std::string>& known, std::string_view help) {
  const std::string nearest = base::nearest_name(word, known);
  fail(nearest.empty()
           ? fmt::format("unknown {} '{}'; see '{}'", kind, word, help)
           : fmt::format("unknown {} '{}'; the nearest known one is '{}'", kind, word, nearest));
}

/// Help is shown by fullshard itself, from the schema.
void prepare(CLI::App& app, bool& help) {
  app.set_help_flag();
  app.allow_extras();
  app.add_flag("-h,--help", help);
}

/// `fullshard train ...`: one CLI11 option for each row of the schema.
class TrainParser {
 public:
  explicit TrainParser(CLI::App& parent) : app_(*parent.add_subcommand("train")) {
    prepare(app_, help_);
    app_.add_flag("--print-config", command_.print_config);
    app_.add_flag("--help-markdown", markdown_);
    app_.add_option("config", command_.config_file);
    for (const config::Field& field : config::schema()) {
      auto* option = app_.add_option("--" + field.key(), values_.emplace_back());
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
      options_.push_back(option);
    }
  }

  bool chosen() const { return app_.parsed(); }

  Command result() {
    if (help_) return ShowText{train_help()};
    if (markdown_) return ShowText{config::markdown_tables()};
    refuse(app_.remaining());
    for (std::size_t i = 0; i < options_.size(); ++i) {
      if (options_[i]->count() > 0) add_flag(config::schema()[i].key(), values_[i]);
    }
    return command_;
  }

 private:
  void add_flag(const std::string& key, const std::string& value) {
    if (value.starts_with("--") && config::find_field(value.substr(2)) != nullptr) {
      fail(fmt::format("--{} needs a value; found the option '{}' in its place", key, value));
    }
    command_.flags.emplace_back(key, value);
  }

  void refuse(const std::vector<std::string>& extras) const {
    if (extras.empty()) return;
    const auto option = std::ranges::find_if(extras, is_option);
    if (option == extras.end()) {
      fail(fmt::format("unexpected argument '{}'; the configuration file is already '{}'",
                       extras.front(), command_.config_file));
    }
    const std::string word = without_value(*option);
    if (word.starts_with("--") && find_near_field(word)) {
      fail(config::unknown_key(word.substr(2), "--"));
    }
    fail_unknown("option", word, {"--help", "--print-config", "--help-markdown"},
                 "fullshard train --help");
  }

  /// Whether a misspelt option is rather a field than an option without a section.
  static bool find_near_field(const std::string& word) {
    const std::string key = word.substr(2);
    return key.find('.') != std::string::npos ||
           std::ranges::any_of(config::schema(),
                               [&](const auto& field) { return field.name == key; });
  }

  CLI::App& app_;
  bool help_ = false;
  bool markdown_ = false;
  TrainCommand command_;
  std::deque<std::string> values_;  // a deque: CLI11 keeps references to what it fills
  std::vector<CLI::Option*> options_;
};

}  // namespace

Command parse_command_line(int argc, const char* const* argv) {
  CLI::App app;
  bool help = false;
  bool version = false;
  prepare(app, help);
  app.add_flag("--version", version);
  TrainParser train(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string message = error.what();  // "NAME: what CLI11 misses"
    fail(message.substr(0, message.find(':')) + " needs a value");
  } catch (const CLI::ParseError& error) {
    fail(error.what());
  }
  if (train.chosen()) return train.result();
  if (help) return ShowText{main_help()};
  if (version) return ShowText{version_line()};
  const std::vector<std::string> extras = app.remaining();
  if (extras.empty()) fail("no command given; see 'fullshard --help'");
  if (is_option(extras.front())) {
    fail_unknown("option", without_value(extras.front()), {"--help", "--version"},
                 "fullshard --help");
  }
  fail_unknown("command", extras.front(), {"train"}, "fullshard --help");
}

}  // namespace fullshard::cli
