#include "cli/field_flags.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>

#include "fullshard/config/schema.h"

namespace fullshard::cli {
namespace {

config::Flag checked(const std::string& key, const std::string& value) {
  if (value.starts_with("--") && config::find_field(value.substr(2)) != nullptr) {
    fail_usage(fmt::format("--{} needs a value; found the option '{}' in its place", key, value));
  }
  return {key, value};
}

bool is_near_field(const std::string& key) {
  return key.find('.') != std::string::npos ||
         std::ranges::any_of(config::schema(),
                             [&](const auto& field) { return field.name == key; });
}

}  // namespace

FieldFlags::FieldFlags(CLI::App& app) {
  for (const config::Field& field : config::schema()) {
    auto* option = app.add_option("--" + field.key(), values_.emplace_back());
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    options_.push_back(option);
  }
}

std::vector<config::Flag> FieldFlags::given() const {
  std::vector<config::Flag> flags;
  for (std::size_t i = 0; i < options_.size(); ++i) {
    if (options_[i]->count() > 0) flags.push_back(checked(config::schema()[i].key(), values_[i]));
  }
  return flags;
}

void FieldFlags::refuse_near_field(const std::string& word) {
  if (!word.starts_with("--") || !is_near_field(word.substr(2))) return;
  fail_usage(config::unknown_key(word.substr(2), "--"));
}

}  // namespace fullshard::cli
