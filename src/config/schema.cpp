#include "fullshard/config/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "fullshard/base/text.h"
#include "fullshard/config/render.h"

namespace fullshard::config {
namespace {

std::string_view kind_of(const Value& value) {
  static constexpr std::string_view kKinds[] = {"boolean", "integer", "number", "text", "list"};
  return kKinds[value.index()];
}

bool in_range(const Range& range, double number) {
  const bool low = range.above_low ? number > range.low : number >= range.low;
  const bool high = range.below_high ? number < range.high : number <= range.high;
  return low && high && std::isfinite(number);
}

/// Whether JSON, which hands the configuration to the ranks, can carry the text unchanged.
bool is_utf8(const std::string& text) {
  try {
    const std::string carried = nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

std::string bound(double number) { return fmt::format("{}", number); }

/// ", 1 or more", ", from 0 to 65535", ", above 0"; empty when every number goes.
std::string describe(const Range& range) {
  const bool no_low = std::isinf(range.low);
  const bool no_high = std::isinf(range.high);
  if (no_low && no_high) return "";
  if (!no_low && !no_high) {
    return fmt::format(", {} {} {} {}", range.above_low ? "above" : "from", bound(range.low),
                       range.below_high ? "to below" : "to", bound(range.high));
  }
  if (no_low) return fmt::format(", {} or less", bound(range.high));
  return range.above_low ? fmt::format(", above {}", bound(range.low))
                         : fmt::format(", {} or more", bound(range.low));
}

/// The value in the type that the field's `set` takes, or nothing when it does not fit.
std::optional<Value> fitted(const Field& field, const Value& value) {
  const auto* integer = std::get_if<std::int64_t>(&value);
  const auto* number = std::get_if<double>(&value);
  const auto* text = std::get_if<std::string>(&value);
  const auto* list = std::get_if<std::vector<std::string>>(&value);
  switch (field.type) {
    case ValueType::kBoolean:
      if (!std::holds_alternative<bool>(value)) return std::nullopt;
      return value;
    case ValueType::kInteger:
      if (integer == nullptr || !in_range(field.range, static_cast<double>(*integer))) break;
      return value;
    case ValueType::kNumber:
      if (integer != nullptr) return fitted(field, static_cast<double>(*integer));
      if (number == nullptr || !in_range(field.range, *number)) break;
      return value;
    case ValueType::kText:
      if (text == nullptr || !is_utf8(*text)) break;
      return value;
    case ValueType::kTextList:
      if (list == nullptr || !std::ranges::all_of(*list, is_utf8)) break;
      return value;
    case ValueType::kChoice:
      if (text == nullptr || std::ranges::find(field.choices, *text) == field.choices.end()) break;
      return value;
  }
  return std::nullopt;
}

std::string hint(const Field& field, const Value& value) {
  const auto* text = std::get_if<std::string>(&value);
  if (field.type != ValueType::kChoice || text == nullptr) return "";
  const std::string nearest = base::nearest_name(*text, field.choices);
  return nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
}

/// What a whole text holds as `T`, or nothing.
template <class T>
std::optional<T> number_in(const std::string& text) {
  T number{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  if (text.empty()) return parts;
  std::size_t begin = 0;
  for (std::size_t comma = text.find(','); comma != std::string::npos;
       comma = text.find(',', begin)) {
    parts.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

/// A key of the same name in another section, else the nearest key of all, else nothing.
std::string nearest_key(std::string_view key) {
  const std::string name(key.substr(key.rfind('.') + 1));
  std::vector<std::string> keys;
  for (const Field& field : schema()) {
    if (field.name == name) return field.key();
    keys.push_back(field.key());
  }
  return base::nearest_name(key, keys);
}

}  // namespace

const Field* find_field(std::string_view key) {
  const auto found =
      std::ranges::find_if(schema(), [key](const Field& field) { return field.key() == key; });
  return found == schema().end() ? nullptr : &*found;
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const Field& field : schema()) {
    if (names.empty() || names.back() != field.section) names.push_back(field.section);
  }
  return names;
}

std::optional<std::string> assign(TrainConfig& config, const Field& field, const Value& value,
                                  std::string_view subject) {
  const std::optional<Value> fit = fitted(field, value);
  if (!fit) {
    return fmt::format("{}: found {} {}; expected {}{}", subject, kind_of(value), to_toml(value),
                       expected(field), hint(field, value));
  }
  field.set(config, *fit);
  return std::nullopt;
}

Value parse_text(const Field& field, const std::string& text) {
  switch (field.type) {
    case ValueType::kBoolean:
      if (text == "true" || text == "false") return text == "true";
      break;
    case ValueType::kInteger:
      if (const auto integer = number_in<std::int64_t>(text)) return *integer;
      break;
    case ValueType::kNumber:
      if (const auto number = number_in<double>(text)) return *number;
      break;
    case ValueType::kTextList: return split_at_commas(text);
    case ValueType::kText:
    case ValueType::kChoice: break;
  }
  return text;
}

std::string expected(const Field& field) {
  switch (field.type) {
    case ValueType::kBoolean: return "true or false";
    case ValueType::kInteger: return "an integer" + describe(field.range);
    case ValueType::kNumber: return "a number" + describe(field.range);
    case ValueType::kText: return "UTF-8 text";
    case ValueType::kTextList: return "a list of UTF-8 texts";
    case ValueType::kChoice:
      return (field.choices.size() > 1 ? "one of " : "") +
             fmt::format("{}", fmt::join(field.choices, ", "));
  }
  return "";
}

std::string unknown_key(std::string_view key, std::string_view prefix) {
  const std::string nearest = nearest_key(key);
  const std::string what = prefix.empty() ? "key" : "option";
  if (!nearest.empty()) {
    return fmt::format("unknown {} '{}{}'; the nearest known one is '{}{}'", what, prefix, key,
                       prefix, nearest);
  }
  return fmt::format("unknown {} '{}{}'; 'fullshard train --help' lists all", what, prefix, key);
}

}  // namespace fullshard::config
