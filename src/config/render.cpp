#include "fullshard/config/render.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace fullshard::config {
namespace {

/// JSON's escapes are TOML's too, but TOML forbids a bare DEL.
std::string quoted(const std::string& text) {
  std::string json =
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (std::size_t at = json.find('\x7f'); at != std::string::npos; at = json.find('\x7f')) {
    json.replace(at, 1, "\\u007F");
  }
  return json;
}

std::string as_float(double number) {
  std::string text = fmt::format("{}", number);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

struct ToToml {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const { return as_float(value); }
  std::string operator()(const std::string& value) const { return quoted(value); }
  std::string operator()(const std::vector<std::string>& values) const {
    std::vector<std::string> items;
    items.reserve(values.size());
    for (const std::string& value : values) items.push_back(quoted(value));
    return fmt::format("[{}]", fmt::join(items, ", "));
  }
};

/// Calls `on_section` at the head of each section and `on_field` for each of its fields.
template <class OnSection, class OnField>
void visit(OnSection on_section, OnField on_field) {
  std::string section;
  for (const Field& field : schema()) {
    if (field.section != section) on_section(field.section);
    section = field.section;
    on_field(field);
  }
}

std::string range_and_unit(const Field& field) {
  return expected(field) + (field.unit.empty() ? "" : " (" + field.unit + ")");
}

}  // namespace

std::string to_toml(const Value& value) { return std::visit(ToToml{}, value); }

std::string to_toml(const TrainConfig& config) {
  std::string text;
  visit(
      [&](const std::string& section) {
        text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
      },
      [&](const Field& field) {
        text += fmt::format("{} = {}  # {}\n", field.name, to_toml(field.get(config)), field.help);
      });
  return text;
}

std::string flag_help() {
  const TrainConfig defaults;
  std::string text;
  visit([&](const std::string& section) { text += fmt::format("\n[{}]\n", section); },
        [&](const Field& field) {
          text += fmt::format("  --{} VALUE\n      {}\n      {}; default {}\n", field.key(),
                              field.help, range_and_unit(field), to_toml(field.get(defaults)));
        });
  return text;
}

std::string markdown_tables() {
  const TrainConfig defaults;
  std::string text;
  visit(
      [&](const std::string& section) {
        text += fmt::format(
            "{}### [{}]\n\n| field | takes | unit | default | meaning |\n"
            "|---|---|---|---|---|\n",
            text.empty() ? "" : "\n", section);
      },
      [&](const Field& field) {
        text += fmt::format("| `{}` | {} | {} | `{}` | {} |\n", field.name, expected(field),
                            field.unit, to_toml(field.get(defaults)), field.help);
      });
  return text;
}

}  // namespace fullshard::config
